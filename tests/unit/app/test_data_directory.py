"""One service at a time in a data directory."""

from pathlib import Path

import pytest

from learnloop_service.app.processes.data_directory import DataDirectory, DataDirectoryError


def test_it_is_made_and_held_until_released(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b"
    directory = DataDirectory(path)
    with pytest.raises(DataDirectoryError, match=r"/a/b is in use by another service \(process \d+\): .* --url"):
        DataDirectory(path)
    directory.release()
    DataDirectory(path).release()


def test_a_file_in_its_place_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DataDirectoryError, match="cannot use the data directory"):
        DataDirectory(tmp_path / "file" / "data")
