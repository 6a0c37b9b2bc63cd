"""One lock for imports of large packages by several threads.

ART is imported with stand-ins for other packages. Another thread's import of one of those would find the stand-in, or
deadlock with ART's.
"""

import threading

IMPORTING = threading.RLock()
