"""Orders with a few things changed."""

from typing import Any

import msgspec

from sedge_protocol.wire.messages import Order
from sedge_protocol.wire.work import Work


def changed(order: Order, **changes: Any) -> Order:
    """The order with other values in these fields; those of ``Work`` are fields of its ``work``."""
    asked = {name: changes.pop(name) for name in Work.__struct_fields__ if name in changes}
    if asked:
        changes["work"] = msgspec.structs.replace(order.work, **asked)
    return msgspec.structs.replace(order, **changes)
