"""[privacy]: a run's differential-privacy budget, and the accountant that computes how long it lasts.

    start     noise = the smallest that keeps num_rounds rounds within epsilon, or as given
              rounds = how many rounds the budget lasts with that noise
    round     spent + 1, in the commit that closes it and releases its model
    end       spent = rounds, and the run ends

A device's data is protected, but not the fact that it takes part: neighbouring data sets are a fleet, and
the same fleet with one device's contribution set to zero (zero-out, dp-accounting's ``REPLACE_SPECIAL``).
Each device takes part in a round by its own coin flip, so the accountant composes Poisson-sampled Gaussians
through their privacy loss distributions. The accountant is dp-accounting, in the extra ``privacy``; a
running coordinator does not need it.
"""

import math
import secrets
from functools import lru_cache
from importlib.util import find_spec
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from sedge_protocol.errors import ConfigError, NotInstalled

# The fraction of delta reserved for draws that select no device and are therefore repeated.
EMPTY_SHARE = 0.01
# Step sizes of the discretised privacy loss. The fine step takes ten times as long to compute with; the
# coarse one is exact to 1e-3 for up to FEW_ROUNDS rounds. Both overestimate epsilon.
COARSE, FINE, FEW_ROUNDS = 1e-3, 1e-4, 300
# With less noise, the privacy loss distribution would not fit in memory.
LEAST_NOISE = 0.1


class PrivacyConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """[privacy]: differential privacy for every device, against everyone who receives the models.

    The coordinator clips each update, adds noise to the sum of the updates, and stops the run when the
    budget is spent (docs/privacy.md). Needs `pip install 'sedge-fl[privacy]'`, a strategy that averages
    (fedavg, fedprox, fedbn, fedper, lg_fedavg, fedrep, fedbabu, fedlc, ditto, apfl, blended, or fedobp with
    `scoring = "device"`), and `[codec] error_feedback = false`.
    """

    epsilon: Annotated[float, Meta(gt=0, le=1000)]
    """Bound on what a run's models reveal about a device: 1 is strong, 8 is common, 20 hardly protects."""
    delta: Annotated[float, Meta(gt=0, lt=1)]
    """Probability that the bound may fail; it must be below 1 / (number of devices)."""
    clip: Annotated[float, Meta(gt=0, le=1e6)]
    """Maximum length (L2 norm) of an update; longer ones are scaled down. Use about the typical length."""
    noise: Annotated[float, Meta(gt=0, le=1e6)] | None = None
    """Standard deviation of the noise in the sum, as a multiple of ``clip``; by default, the value at which
    ``num_rounds`` rounds spend the budget."""
    reports: Literal["withheld", "kept"] = "withheld"
    """Whether devices' measurements are ``withheld`` from summaries, page and metrics, which rules out
    evaluation rounds, or ``kept``, which the guarantee does not cover."""


class PrivacyBudget(msgspec.Struct, frozen=True):
    """A run's privacy budget: it allows ``rounds`` training rounds, of which ``spent`` are used up.

    Coins and noise are derived from ``secret`` (32 bytes). ``noise`` is a multiple of the clip, and a
    round's sum is divided by ``expected``.
    """

    secret: bytes
    noise: float
    expected: float
    rounds: int
    spent: int = 0

    @property
    def left(self) -> int:
        """Return how many more training rounds are allowed."""
        return self.rounds - self.spent

    def after_round(self) -> "PrivacyBudget":
        """Return the budget with one more round spent."""
        return msgspec.structs.replace(self, spent=self.spent + 1)


def first_budget(
    config: PrivacyConfig, share: float, rounds: int, devices: int, secret: bytes | None = None
) -> PrivacyBudget:
    """Return a budget for ``rounds`` rounds, if a device joins each with probability ``share``.

    If the config sets the noise, the budget may allow fewer rounds. ``secret`` is drawn at random if not
    given. Raises ``ConfigError`` if the accountant is not installed, if delta is too large for this many
    devices, or if the noise is so low that even one round exceeds epsilon.
    """
    require_accountant()
    require_devices(config, devices)
    secret = secret or secrets.token_bytes(32)
    delta = (1 - EMPTY_SHARE) * config.delta
    if config.noise is None:
        noise = least_noise(share, rounds, config.epsilon, delta)
        return PrivacyBudget(secret, noise, share * devices, rounds)
    if config.noise < LEAST_NOISE:
        raise ConfigError(
            "privacy.noise", config.noise, f"at least {LEAST_NOISE:g}, as a multiple of clip"
        )
    lasts = _lasting(config.noise, share, rounds, config.epsilon, delta)
    if not lasts:
        found = epsilon_of(config.noise, share, 1, delta)
        expected = f"more: one round alone spends epsilon {found:.3g} of {config.epsilon:g}"
        raise ConfigError("privacy.noise", config.noise, expected)
    return PrivacyBudget(secret, config.noise, share * devices, lasts)


def require_accountant() -> None:
    """Raise ``ConfigError``, which says what to install, if dp-accounting is not installed."""
    if find_spec("dp_accounting") is None:
        raise NotInstalled("[privacy]", "dp-accounting", "privacy")


def require_devices(config: PrivacyConfig, devices: int, where: str = "") -> None:
    """Raise ``ConfigError`` if delta is so large that it permits publishing one device's data in full."""
    if not devices:
        raise ConfigError(
            "privacy",
            "no device",
            "enrolled devices, because delta is checked against their number",
            where,
        )
    if config.delta * devices >= 1:
        expected = f"below 1 / {devices} devices"
        raise ConfigError("privacy.delta", config.delta, expected, where)


def require_found(
    config: PrivacyConfig, share: float, rounds: int, fewest: int, where: str
) -> None:
    """Raise ``ConfigError`` if a draw among ``fewest`` devices is too likely to select none.

    An empty draw is repeated, which weakens privacy. The probability of an empty draw must therefore stay
    below a fixed fraction of delta.
    """
    allowed = EMPTY_SHARE * config.delta / rounds
    if share < 1 and (1 - share) ** fewest > allowed:
        needed = math.ceil(math.log(allowed) / math.log1p(-share))
        expected = (
            f"at least {needed} with fraction_train = {share:g}: otherwise a draw may be empty"
        )
        raise ConfigError("min_available_devices", fewest, expected, where)


@lru_cache
def least_noise(share: float, rounds: int, epsilon: float, delta: float) -> float:
    """Return the smallest noise, rounded to four digits, that keeps this many rounds within epsilon."""
    low, high = 0.0, 1.0
    while epsilon_of(high, share, rounds, delta) > epsilon:
        low, high = high, 2 * high
    while high - low > 1e-4 * high:
        middle = (low + high) / 2
        if middle < LEAST_NOISE or epsilon_of(middle, share, rounds, delta) > epsilon:
            low = middle
        else:
            high = middle
    return high


@lru_cache
def epsilon_of(noise: float, share: float, rounds: int, delta: float) -> float:
    """Return the epsilon that this many rounds spend.

    Raises ``ConfigError`` if the accountant is not installed.
    """
    if not rounds:
        return 0.0
    require_accountant()
    import dp_accounting as dp
    from dp_accounting import pld

    accountant = pld.PLDAccountant(
        neighboring_relation=dp.NeighboringRelation.REPLACE_SPECIAL,
        value_discretization_interval=COARSE if rounds <= FEW_ROUNDS else FINE,
    )
    one = dp.PoissonSampledDpEvent(share, dp.GaussianDpEvent(noise))
    accountant.compose(dp.SelfComposedDpEvent(one, rounds))
    return float(accountant.get_epsilon(delta))


def _lasting(noise: float, share: float, rounds: int, epsilon: float, delta: float) -> int:
    """Return how many of ``rounds`` rounds stay within epsilon."""
    within, beyond = 0, rounds + 1
    while beyond - within > 1:
        middle = (within + beyond) // 2
        if epsilon_of(noise, share, middle, delta) <= epsilon:
            within = middle
        else:
            beyond = middle
    return within


def bought_line(config: PrivacyConfig, share: float, budget: PrivacyBudget) -> str:
    """Describe what the whole budget buys. Raises ``ConfigError`` if the accountant is not installed."""
    delta = (1 - EMPTY_SHARE) * config.delta
    return (
        f"privacy: {budget.rounds} training rounds with noise of {budget.noise:.4g} clips spend"
        f" epsilon {epsilon_of(budget.noise, share, budget.rounds, delta):.3g} of {config.epsilon:g} at"
        f" delta {config.delta:g}"
    )


def spent_line(config: PrivacyConfig, share: float, budget: PrivacyBudget) -> str:
    """Describe the budget spent so far; without the accountant, only as a number of rounds."""
    rounds = f"{budget.spent} of its {budget.rounds} training rounds used"
    try:
        delta = (1 - EMPTY_SHARE) * config.delta
        spent = f"epsilon {epsilon_of(budget.noise, share, budget.spent, delta):.3g}"
    except ConfigError:
        return f"privacy: {rounds}; epsilon {config.epsilon:g} in total"
    return (
        f"privacy: {spent} of {config.epsilon:g} at delta {config.delta:g} spent, {rounds} "
        f"(noise {budget.noise:.4g}, clip {config.clip:g})"
    )
