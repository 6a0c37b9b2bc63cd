"""An engine on a disk that stands still: while the file that HELD_DISK names exists, nothing is synced.

If the file is not empty, the disk is full.
"""

import errno
import os
import time
from pathlib import Path

from learnloop_service.training.engine.__main__ import main


def hold(hold_file: Path) -> None:
    """Make the syncs of this process wait for that file to go."""
    sync = os.fsync

    def fsync(descriptor: int) -> None:
        while hold_file.exists():
            if hold_file.stat().st_size:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            time.sleep(0.005)
        sync(descriptor)

    os.fsync = fsync  # type: ignore[assignment]


if __name__ == "__main__":
    hold(Path(os.environ["HELD_DISK"]))
    main()
