"""Writes spec.json: what a client must do, beyond bytes, as cases that any language can play.

``make spec`` writes the tables of the pages, not these cases.

python -m tests.vectors.make_spec
"""

import json
from pathlib import Path

from tests.vectors import make_bundles as bundles
from tests.vectors import make_choices as choices
from tests.vectors import make_joins as joins
from tests.vectors import make_rounds as rounds
from tests.vectors import make_training as training
from tests.vectors import make_transfers as transfers
from tests.vectors.make_extensions import extended_rounds

ABOUT = (
    "Cases of protocol/WIRE.md and its pages. Bytes are hex, floats are binary32 as 8 hex digits of "
    "their little-endian bytes, one after the other. shuffles: T6, the epochs' permutations. "
    "batches: T4, each as epoch, rows and w. rates: X18. error_feedback: T9 to T11, round after "
    "round: change is trained - start, coded the coded vector, owed what is kept after it. replay: "
    "3.6, the verdicts on control frames (incarnation, seq) in turn. uploads and downloads: sections "
    "7 and 8, an event and what is sent at once after it, the blob of an upload having so many "
    "bytes; timer means that time is up, whatever it was, if anything was timed; changed and short "
    "are chunk 0 with other bytes or without its last, beyond is a chunk after the last; woken comes "
    "2 s, woken soon 0.5 s after the event before it. bundles: B1 to B6, X14, blobs to accept or "
    "refuse. programs: B13, B15, B16, ONNX models to take or to refuse. versions: 5.14, a base, a "
    "step and the model that they make. backoffs: 7.2 and 8.3, the longest wait after each OFFER or "
    "GET, with `new` where something new is held between two. waits: 1.9, connections that end at a "
    "time, how, and the longest wait after each, for WELCOMEs with these devices. patience: 8.3, "
    "chunks arrive so many seconds after the first GET, while each GET is sent when it is due; cut "
    "is the end of a connection and the beginning of the next, woken an event of 8.3; the patience "
    "after each chunk but the first of a connection. rounds: T1 to T11 over T13's line, order after "
    "order of one run; declined is the reason, owed null where none is kept (zeros are the same), "
    "before and after are loss, metric and number of examples. extended_rounds: the same with work "
    "as an ORDER has it, the last mask that the device has sent as context, and its correction, "
    "decoded; then the report's mix and sparse, what X10 keeps, what it predicts with and a "
    "mixture's own part. needs: 8.1 and 8.2, what is fetched for an order whose steps are pairs of "
    "base and delta and whose model is v3; holds are blobs and versions on the disk; version is one "
    "that is held as a chain, the pairs of base and delta that lead to it, and null where each that "
    "is held lies in values. verdicts: 9.3, the reason of the REJECT, empty where the update is "
    "taken; model is the order's, and work more of its Work. join_texts: E7, null is refused. "
    "chains: P8, count are the ids of the keys that count after a chain. joins: E9, E10, E14, E18, "
    "numbers and bytes in hex. agreements: 3.4, the version of a control frame before the WELCOME "
    "and after it, null where none is in common. openings: 3.6 and 3.8, frames as kind, incarnation, "
    "seq and what of them: a bad body, or the nonce that the device awaits. noises: T12. "
    "further_seeds: T6. halvings: 7.5, on each connection nothing is sent (offered), a chunk is "
    "sent, one arrives, or an OFFER after it is answered without it (lost), or a HAVE of number 0 "
    "comes without it (heard); chunk_bytes, 16384 at first, of an update of so many bytes on the "
    "next one. Seeds may be above 2^53."
)


def vectors() -> dict[str, object]:
    """Everything in spec.json."""
    return {
        "about": ABOUT, "shuffles": training.shuffles(), "batches": training.batch_cases(),
        "rates": training.rates(), "error_feedback": training.feedback(),
        "replay": transfers.replays(), "uploads": transfers.uploads(),
        "backoffs": transfers.backoffs(), "downloads": transfers.downloads(),
        "waits": transfers.waits(), "patience": transfers.patience(),
        "bundles": bundles.bundles(), "programs": bundles.programs(), "versions": rounds.versions(),
        "rounds": rounds.rounds(), "extended_rounds": extended_rounds(),
        "noises": training.noises(), "further_seeds": training.further_seeds(),
        "openings": choices.openings(), "needs": choices.needs(), "verdicts": choices.verdicts(),
        "halvings": transfers.halvings(), "join_texts": joins.join_texts(), "joins": joins.joins(),
        "agreements": choices.agreements(), "chains": joins.chains(),
    }  # fmt: skip


if __name__ == "__main__":
    made = vectors()
    text = json.dumps(made, separators=(", ", ": "))
    for key in made:
        text = text.replace(f'"{key}": [{{', f'\n"{key}": [\n{{')
    Path(__file__).with_name("spec.json").write_text(text.replace('}, {"', '},\n{"') + "\n")
