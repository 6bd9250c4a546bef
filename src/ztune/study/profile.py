"""Disk profiles: what a device can do, as the replay engine's device model takes it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    TypeAdapter,
    model_serializer,
    model_validator,
)

from ztune.units import parse_size

Size = Annotated[int, BeforeValidator(parse_size)]

CACHE_MB = {"hdd": 64.0, "flash": 32.0}
"""MiB of volatile write cache where a profile gives none: a 3.5 inch disk of the 2010s, a consumer SSD."""


class _Base(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    name: str = Field(pattern=r"^[A-Za-z][A-Za-z0-9_.-]*$", description="The name that layouts use.")
    description: str = Field(default="", description="One line for people.")
    source: str = Field(default="", description="Where the numbers come from.")
    size: Size = Field(ge=64 << 20, description="Capacity of one such disk, bytes or text such as 1T.")
    read_mb_s: float = Field(gt=0, description="Sequential read rate, 10^6 bytes a second.")
    write_mb_s: float = Field(gt=0, description="Sequential write rate, 10^6 bytes a second.")
    overhead_us: float = Field(
        default=0, ge=0, description="Added to every request: command and interrupt, µs."
    )

    cache_mb: float | None = Field(
        default=None,
        ge=0,
        le=1024,
        description="Volatile write cache of the lab's disks, MiB; 0 if a power cut loses nothing that was "
        "acknowledged. Default 64 (hdd), 32 (flash). Not replayed.",
    )

    @model_serializer(mode="wrap")
    def _without_default_cache(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # Profiles from before this key, stored with runs, must stay equal to themselves.
        found: dict[str, Any] = dump(self)
        if found.get("cache_mb") is None:
            found.pop("cache_mb", None)
        return found

    def engine_json(self) -> dict[str, Any]:
        """Return the form that the engine's spec carries: what it models, without the source."""
        return self.model_dump(exclude={"source", "cache_mb"})


class HddProfile(_Base):
    """A rotating disk."""

    kind: Literal["hdd"] = Field(description="hdd or flash.")
    rotational: Literal[True] = Field(default=True, description="true for hdd, false for flash.")
    rpm: float = Field(gt=0, description="Rotations a minute.")
    seek_track_ms: float = Field(ge=0, description="Seek to the next track, ms.")
    seek_avg_ms: float = Field(gt=0, description="Average seek, ms.")
    seek_full_ms: float = Field(gt=0, description="Seek across the whole disk, ms.")
    flush_ms: float = Field(default=0, ge=0, description="What a cache flush costs beyond one rotation, ms.")

    @model_validator(mode="after")
    def _ordered(self) -> HddProfile:
        if not self.seek_track_ms <= self.seek_avg_ms <= self.seek_full_ms:
            raise ValueError("seek_track_ms ≤ seek_avg_ms ≤ seek_full_ms does not hold")
        return self


class FlashProfile(_Base):
    """A disk without moving parts."""

    kind: Literal["flash"] = Field(description="hdd or flash.")
    rotational: Literal[False] = Field(default=False, description="true for hdd, false for flash.")
    channels: int = Field(ge=1, le=4096, description="Requests it serves at the same time.")
    read_us: float = Field(gt=0, description="4 KiB read at queue depth 1, µs.")
    write_us: float = Field(gt=0, description="4 KiB write at queue depth 1, µs.")
    flush_us: float = Field(
        default=0, ge=0, description="Cache flush, µs; tiny where the cache is protected."
    )


def cache_bytes(profile: HddProfile | FlashProfile) -> int:
    """Return the size of a disk's volatile write cache in bytes."""
    mib = CACHE_MB[profile.kind] if profile.cache_mb is None else profile.cache_mb
    return int(mib * (1 << 20))


Profile = Annotated[HddProfile | FlashProfile, Field(discriminator="kind")]
PROFILE: TypeAdapter[HddProfile | FlashProfile] = TypeAdapter(Profile)
