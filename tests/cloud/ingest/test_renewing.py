"""A device changes its secret: what the coordinator asks, takes and drops, message by message."""

import logging
from contextlib import closing

import msgspec
from tests.cloud.helper import FLEET, RUN, Cloud, Device, a_hello, secret_of

from sedge_cloud.ingest.renewing import AGAIN_S, OFFER_S
from sedge_protocol.wire import topics
from sedge_protocol.wire.effects import Send
from sedge_protocol.wire.frame import HEADER
from sedge_protocol.wire.joining import Agreement, private_key, public_key
from sedge_protocol.wire.messages import Join, Renew, Welcome

PRIVATE = private_key(b"d" * 32)


def join(renew: Renew, name: str = "a", private: int = PRIVATE) -> tuple[Join, bytes]:
    """The answer to a RENEW, and the secret that follows from it."""
    own = public_key(private)
    agreement = Agreement.of(private, renew.point, own, FLEET, name)
    return Join(own, name, agreement.asks(name)), agreement.secret


def numbers(cloud: Cloud) -> list[tuple[int, int]]:
    """Start count and number of every frame to device a so far."""
    headers = [HEADER.unpack_from(send.payload) for send in cloud.sends(topics.down(FLEET, "a"))]
    return [(header[5], header[6]) for header in headers]


def known(cloud: Cloud) -> bytes:
    row = cloud.store.device("a")
    assert row is not None
    return row.secret


def asked(cloud: Cloud) -> Renew:
    """Both devices are to change, and only a can."""
    cloud.say("a", a_hello("one", codecs=("renew",)))
    cloud.say("b", a_hello("one"))
    with closing(cloud.second_store()) as store:
        store.require_fleet(FLEET)
        store.ask_to_renew(["a", "b"], 5.0)
    cloud.notice()
    (renew,) = cloud.messages("a", Renew)
    assert cloud.messages("b", Renew) == []
    return renew


def test_it_is_asked_until_it_answers(cloud: Cloud) -> None:
    """Any message may be lost."""
    cloud.store.set_status(RUN, "stopped")  # nothing else is due
    cloud.load()
    renew = asked(cloud)
    assert cloud.core.timer() == cloud.now + AGAIN_S
    cloud.poll(AGAIN_S - 1)
    assert len(cloud.messages("a", Renew)) == 1
    cloud.poll(1)
    assert cloud.messages("a", Renew) == [renew, renew]
    assert renew in cloud.say("a", a_hello("two", codecs=("renew",)))
    cloud.say("a", join(renew)[0])
    cloud.poll(2 * AGAIN_S)
    assert len(cloud.messages("a", Renew)) == 3
    assert renew in cloud.say("a", a_hello("three", codecs=("renew",)))  # it may have lost its disk


def test_the_old_secret_is_good_until_the_new_one_is_used(cloud: Cloud) -> None:
    renew = asked(cloud)
    message, secret = join(renew)
    cloud.say("a", message)
    old = cloud.devices["a"]
    for life in ("one", "two"):  # the coordinator is killed meanwhile
        assert cloud.say("a", a_hello(f"{life} more", codecs=("renew",)))
        assert known(cloud) == secret_of("a")
        cloud.restart()
        cloud.load()
    row = cloud.store.renewal("a")
    assert row is not None and row.secret == secret
    new = Device("a", secret=secret)
    new.peer.sent = old.peer.sent
    heard = max(numbers(cloud))
    cloud.devices["a"] = new
    effects = cloud.arrive(new.topic, new.peer.seal(join(renew)[0]))  # no HELLO: it is ignored
    assert known(cloud) == secret_of("a") and not [e for e in effects if isinstance(e, Send)]
    cloud.effects[:] = [note for note in cloud.effects if not isinstance(note, Send)]
    (welcome, *_) = cloud.say("a", a_hello("four", codecs=("renew",)))
    assert isinstance(welcome, Welcome) and known(cloud) == secret
    assert cloud.store.renewal("a") is None
    # The counts of its frames go on, as the device's window does.
    assert min(numbers(cloud)) > heard
    cloud.devices["a"] = old
    assert cloud.say("a", a_hello("five")) == [] and known(cloud) == secret
    cloud.restart()
    cloud.devices["a"] = Device("a", incarnation=2, secret=secret)
    assert cloud.say("a", a_hello("six"))


def test_who_was_not_asked_or_has_no_proof(cloud: Cloud) -> None:
    renew = asked(cloud)
    message, _ = join(renew)
    for wrong in (
        msgspec.structs.replace(message, proof=bytes(16)),
        msgspec.structs.replace(message, point=bytes(65)),
        msgspec.structs.replace(message, device="b"),
    ):
        cloud.say("a", wrong)
    row = cloud.store.renewal("a")
    assert row is not None and not row.point
    with closing(cloud.second_store()) as store:
        store.reissue_device("b", secret_of("b"))
    cloud.load()
    cloud.say("b", join(renew, "b")[0])
    assert cloud.store.renewal("b") is None and known(cloud) == secret_of("a")
    dropped = [text for text in cloud.notes(logging.WARNING) if "dropped a frame" in text]
    assert len(dropped) == 4
    assert "not asked for another secret" in dropped[-1]


def test_a_device_that_offers_one_secret_after_another(cloud: Cloud) -> None:
    """The broker gets one a minute, and in the end the newest, which may be all that the device has."""
    renew = asked(cloud)
    offers = [join(renew, "a", private_key(bytes([number]) * 32)) for number in range(1, 5)]
    with closing(cloud.second_store()) as store:
        for message, _ in offers[:3]:
            cloud.say("a", message)
            cloud.say("a", a_hello("again", codecs=("renew",)))  # which does not help
            cloud.poll(1.0)
            store.give_passwords(store.renewals_due())
        assert store.renewals_due() == []
        row = store.renewal("a")
        assert row is not None and row.secret == offers[0][1]
        assert (cloud.core.timer() or 0.0) <= cloud.now + OFFER_S - 3.0
        cloud.poll(OFFER_S - 3.0)
        assert [due.secret for due in store.renewals_due()] == [offers[2][1]]
        cloud.poll(OFFER_S)
        cloud.say("a", offers[3][0])
        assert [due.secret for due in store.renewals_due()] == [offers[3][1]]


def test_the_next_change_of_a_secret_does_not_wait(cloud: Cloud) -> None:
    """What a device offered before it used its new secret is no reason to hold it back."""
    renew = asked(cloud)
    message, secret = join(renew)
    cloud.say("a", message)
    held, _ = join(renew, "a", private_key(bytes(31) + b"e"))  # and void with the first
    cloud.say("a", held)
    cloud.devices["a"] = Device("a", secret=secret)
    cloud.say("a", a_hello("new", codecs=("renew",)))
    assert known(cloud) == secret
    with closing(cloud.second_store()) as store:
        store.require_fleet(FLEET)
        store.ask_to_renew(["a"], 6.0)
        cloud.load()
        later, next_secret = join(renew, "a", private_key(b"f" * 32))
        cloud.say("a", later)
        row = store.renewal("a")
        assert row is not None and row.secret == next_secret
