"""Settings: explicit argument, else environment (``VIBEGEMM_*``), else the default."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import platformdirs
from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


def _data(name: str) -> Path:
    return Path(platformdirs.user_data_dir("tvm-vibegemm", appauthor=False)) / name


def _cache(name: str) -> Path:
    return Path(platformdirs.user_cache_dir("tvm-vibegemm", appauthor=False)) / name


class Settings(BaseSettings):
    """Everything that the environment may set, each as ``VIBEGEMM_<NAME>``."""

    model_config = SettingsConfigDict(env_prefix="VIBEGEMM_", extra="ignore")

    database: str = Field(
        default_factory=lambda: f"sqlite:///{_data('database.sqlite')}",
        description="SQLAlchemy URL of the tuning database; a bare path means SQLite.",
    )
    cubin_cache: Path = Field(
        default_factory=lambda: _cache("cubin"), description="Folder of compiled kernels."
    )
    build_timeout_s: float = Field(
        default=120.0, gt=0, description="Seconds that NVRTC may take for one kernel."
    )
    mailbox: Path = Field(
        default_factory=lambda: Path("mailbox"),
        description="Folder of prompt and reply files of the mailbox provider.",
    )
    provider: str | None = Field(
        default=None, description="Language-model provider; replay when no key is set."
    )
    model: str | None = Field(default=None, description="Model name at the provider.")
    base_url: str | None = Field(default=None, description="Base URL of an OpenAI-like endpoint.")
    api_key: str | None = Field(default=None, repr=False, description="Key for that endpoint.")


@cache
def settings() -> Settings:
    """Return the process-wide settings, read once; ``settings.cache_clear()`` rereads them."""
    return Settings()
