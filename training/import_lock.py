"""Lock for imports of large packages from several threads.

While ART is imported, torch and transformers are hidden. An import in another thread could not find them, or would
deadlock with ART's.
"""

import threading

IMPORTING = threading.RLock()
