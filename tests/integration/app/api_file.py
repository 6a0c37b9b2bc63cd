"""What the API says of itself today."""

from functools import cache
from pathlib import Path

from learnloop_service.app.main import create_app
from learnloop_service.app.settings import load_settings
from learnloop_service.environment.json_type import Json


@cache  # making it takes a second
def current_api() -> Json:
    """To be read only."""
    return create_app(load_settings(_env_file=None, data_dir=Path("nowhere"))).openapi()
