"""[[classes]] and [churn] in a fleet file: how fast each class of devices is, and what fails and how often.

Times are virtual seconds on the emulation's clock. An event whose mean interval ("every") is 0 never
happens. The intervals are exponentially distributed, and so are the durations of link cuts and of full
disks.
"""

from collections.abc import Iterator
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

# More frequent events would only slow the emulation down.
SHORTEST_MEAN_S = 1.0
MEAN = f"0 (never) or at least {SHORTEST_MEAN_S:g} second"
_MAX_S = 3.2e8  # ten years

Name: TypeAlias = Annotated[str, Meta(min_length=1, max_length=64)]
Chance: TypeAlias = Annotated[float, Meta(ge=0, le=1)]
Milliseconds: TypeAlias = Annotated[float, Meta(ge=0, le=1e9)]
Seconds: TypeAlias = Annotated[float, Meta(ge=0, le=_MAX_S)]
KbitPerS: TypeAlias = Annotated[float, Meta(ge=0, le=1e9)]


class LinkConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[classes.link]: the link between a device of the class and the broker."""

    delay_ms: Milliseconds = 0.0
    """Delay of every message, in milliseconds."""
    jitter_ms: Milliseconds = 0.0
    """Maximum extra delay of a message in milliseconds, drawn uniformly."""
    loss: Chance = 0.0
    """Probability that a message is lost."""
    corrupt: Chance = 0.0
    """Probability that a message arrives damaged."""
    duplicate: Chance = 0.0
    """Probability that a message arrives twice."""
    up_kbit_s: KbitPerS = 0.0
    """Upload rate in kbit/s (1,000 bits), at which queued messages are sent; 0 sets no limit."""
    down_kbit_s: KbitPerS = 0.0
    """Download rate in kbit/s (1,000 bits), at which queued messages arrive; 0 sets no limit."""
    cut_every_s: Seconds = 0.0
    """Mean seconds that the link stays up before it is cut; 0 means never."""
    cut_s: Seconds = 0.0
    """Mean seconds that a cut link stays down."""


class DutyConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[classes.duty]: the recurring hours in which devices of the class are on.

    Each device's hours are shifted at random.
    """

    period_s: Annotated[float, Meta(ge=1, le=_MAX_S)]
    """Length of a period in seconds, such as 86,400 for a day."""
    on_s: Annotated[float, Meta(ge=1, le=_MAX_S)]
    """Seconds of each period for which a device is on."""


class ClassConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[[classes]]: a class of devices that behave alike."""

    name: Name
    """Name of the class in the report."""
    share: Annotated[float, Meta(gt=0, le=1e6)] = 1.0
    """Weight of the class when devices are divided among the classes."""
    step_ms: Milliseconds = 20.0
    """Milliseconds per training step of the whole model; narrower models take less, in proportion to
    their parameters."""
    start_ms: Milliseconds = 0.0
    """Milliseconds that a job takes before its first step."""
    jitter: Annotated[float, Meta(ge=0, le=3)] = 0.0
    """Spread of job times: sigma of a lognormal factor with median 1."""
    straggler_share: Chance = 0.0
    """Share of the jobs that take ``straggler_factor`` times as long."""
    straggler_factor: Annotated[float, Meta(ge=1, le=1e6)] = 4.0
    """Factor by which a straggling job is slower."""
    reboot_every_s: Seconds = 0.0
    """Mean seconds between restarts, which clear the device's memory; 0 means never."""
    disk_full_every_s: Seconds = 0.0
    """Mean seconds until the device's disk refuses writes; 0 means never."""
    disk_full_s: Seconds = 0.0
    """Mean seconds that a full disk refuses writes."""
    memory_mb: Annotated[int, Meta(ge=0, le=2**30)] = 0
    """Memory in megabytes that the device reports, from which strategies choose its width; 0 reports
    none."""
    absent_rounds: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    """Number of final training rounds that devices of the class miss; if they miss all rounds, they are
    newcomers in the final evaluation."""
    link: LinkConfig = LinkConfig()
    duty: DutyConfig | None = None


class ChurnConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[churn]: devices that join and leave."""

    join_within_s: Seconds = 0.0
    """Seconds within which all devices join, each at a random time."""
    leave_every_s: Seconds = 0.0
    """Mean lifetime of a device in seconds, exponentially distributed, after which it leaves for good; 0
    means never."""


def contradictions(kind: ClassConfig) -> Iterator[tuple[str, float, str]]:
    """Yield contradictory settings of a class, each as its key, its value and what was expected."""
    link, duty = kind.link, kind.duty
    for key, every_s in (
        ("link.cut_every_s", link.cut_every_s),
        ("reboot_every_s", kind.reboot_every_s),
        ("disk_full_every_s", kind.disk_full_every_s),
    ):
        if 0 < every_s < SHORTEST_MEAN_S:
            yield key, every_s, MEAN
    for key, every_s, lasting_s in (
        ("link.cut", link.cut_every_s, link.cut_s),
        ("disk_full", kind.disk_full_every_s, kind.disk_full_s),
    ):
        if bool(every_s) != bool(lasting_s):
            wrong = f"{key}_every_s" if lasting_s else f"{key}_s"
            yield wrong, 0.0, f"above 0: set {key}_every_s and {key}_s together"
    if duty and duty.on_s > duty.period_s:
        yield "duty.on_s", duty.on_s, f"at most duty.period_s = {duty.period_s:g}"
