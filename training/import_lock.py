"""One lock for imports of large packages by several threads.

While ART is imported, torch and transformers count as missing. Another thread's import would miss them as well, or
deadlock with ART's.
"""

import threading

IMPORTING = threading.RLock()
