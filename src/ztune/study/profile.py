"""Disk profiles: what a device can do, as the replay engine's device model takes it."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

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

Cache = Literal["volatile", "protected", "ignores-flushes", "none", "not-known"]
Size = Annotated[int, BeforeValidator(parse_size)]

CACHE_MB = {"hdd": 64.0, "flash": 32.0}
"""MiB of write cache where a profile gives none: a 3.5 inch disk of the 2010s, a consumer SSD."""


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
        description="Write cache, MiB; 0: none. Default 64 (hdd), 32 (flash).",
    )
    cache: Cache | None = Field(
        default=None,
        description="What becomes of the cache. `volatile`: a flush writes it out, a power cut takes the "
        "rest; `protected`: it outlives a power cut; `ignores-flushes`: a power cut takes what was flushed "
        "too; `none`: there is none. Not given: `not-known`, unless `cache_mb` is 0.",
    )

    @model_validator(mode="after")
    def _cached(self) -> Self:
        if self.cache == "none" and self.cache_mb:
            raise ValueError(f'cache = "none" and cache_mb = {self.cache_mb:g} contradict each other')
        if self.cache in ("volatile", "ignores-flushes") and self.cache_mb == 0:
            raise ValueError(f'cache = "{self.cache}" and cache_mb = 0 contradict each other')
        return self

    @model_serializer(mode="wrap")
    def _without_default_cache(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # Profiles from before these keys, stored with runs, must stay equal to themselves.
        return {
            key: value
            for key, value in dump(self).items()
            if key not in ("cache_mb", "cache") or value is not None
        }

    def engine_json(self) -> dict[str, Any]:
        """Return the form that the engine's spec carries: what it models, without the source."""
        modelled = self.cache in ("protected", "ignores-flushes", "none")
        return self.model_dump(exclude={"source", *(() if modelled else ("cache",))})

    @property
    def declared_cache(self) -> Cache:
        """What becomes of its cache at a power cut, as far as somebody has declared it."""
        return self.cache or ("none" if self.cache_mb == 0 else "not-known")

    @property
    def flushes_at_once(self) -> bool:
        """Whether a flush of an hdd has nothing to wait for."""
        return self.cache == "ignores-flushes" or (self.cache == "protected" and self.cache_mb != 0)


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
    """Return the size of a disk's write cache in bytes."""
    if profile.cache == "none":
        return 0
    mib = CACHE_MB[profile.kind] if profile.cache_mb is None else profile.cache_mb
    return int(mib * (1 << 20))


Profile = Annotated[HddProfile | FlashProfile, Field(discriminator="kind")]
PROFILE: TypeAdapter[HddProfile | FlashProfile] = TypeAdapter(Profile)
