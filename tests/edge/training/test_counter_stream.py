"""The counter stream is SplitMix64, whose outputs others have published, and every purpose has its own."""

from sedge_edge.training.counter_stream import Purpose, stream_key, words

# https://rosettacode.org/wiki/Pseudo-random_numbers/Splitmix64
SEED = 1234567
OUTPUTS = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]


def test_the_words_are_splitmix64s() -> None:
    assert words(SEED, 4).tolist() == OUTPUTS
    assert words(2**64 - 1, 0).tolist() == []


def test_each_seed_purpose_and_part_has_its_own_key() -> None:
    keys = {
        stream_key(seed, purpose, part)
        for seed in (0, 1, 2**63 - 1)
        for purpose in Purpose
        for part in range(3)
    }
    assert len(keys) == 36 and all(0 <= key < 2**64 for key in keys)
