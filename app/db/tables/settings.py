"""Settings that operators change while the service runs. All others are read where a process starts."""

from datetime import datetime

from sqlalchemy import Text, func
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from learnloop_service.app.db.tables.base import Base
from learnloop_service.environment.json_type import Json


class Setting(Base):
    """A setting by its name in `app/settings.py`. One without a value has no row."""

    __tablename__ = "setting"

    name: Mapped[str] = mapped_column(Text, primary_key=True)
    value: Mapped[Json] = mapped_column(JSONB)
    changed_at: Mapped[datetime] = mapped_column(server_default=func.now())
