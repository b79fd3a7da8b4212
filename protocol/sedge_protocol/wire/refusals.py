"""The texts with which a device refuses an order, the same in every language (``make spec``).

A text says what is wrong, where, and what was expected; ``where`` is the order, "run a, round 2".
"""

UNANNOUNCED = "{where}: needs {words}, which this device has not announced"
TOO_MANY_RUNS = (
    "{where}: found {runs} other runs, each with one of the last {orders} orders, expected one that "
    "seems to be over"
)
TOO_MANY_STARTS = (
    "{where}: the agent was killed or lost power in each of {starts} attempts, expected one to finish; "
    "is there enough memory?"
)
OUT_OF_MEMORY = "{where}: memory: {error}, expected room for the job"
BLOB_TOO_LARGE = (
    "{blob} of {size} bytes, expected at most {most} for the bundle's {parameters} parameters"
)
MESSAGE_TOO_LARGE = (
    "an update of {size} bytes needs messages of {packet} bytes, the broker takes {most} (Mosquitto: "
    "message_size_limit or max_packet_size)"
)
WRONG_LABEL = "{name}[{place}] is {value}, the model has classes 0 to {last}"
WRONG_ELEMENT = (
    "{name}[{place}] is {value}, the model has classes 0 to {last}; {ignored} is for an element that "
    "does not count"
)
WRONG_TOKEN = (
    "{name}[{place}] is {value}, the model knows 0 to {last}: use one of these for all others"
)
NOTHING_COUNTS = "{name}[{row}] holds {ignored} alone, so nothing of it counts: leave the row out"
NOTHING_COUNTED = "evaluation: the {count} examples weigh 0 together, expected one that counts"
WRONG_MODEL = "{where}: model_hash does not match the model"
WRONG_STEPS = "{where}: model_hash does not match the last of {steps} steps"
WRONG_PATCH = "{where}: patch_hash does not match"
UNSIGNED = "no signed policy, expected one by a key that this device pins: {keys}"
CUT_POLICY = "a policy of {size} bytes, expected more than the {least} of its signature"
FOREIGN_KEY = "its policy is signed by the key {key}, this device pins {keys}"
BAD_SIGNATURE = "its policy is not the one that the key {key} has signed"
UNREADABLE_POLICY = "its policy breaks the schema, expected one of `sedge-cloud run sign`"
OTHER_RUN = "its policy is that of run {run}"
OLD_POLICY = "its policy has version {version}, this device has taken version {taken}"
EXPIRED_POLICY = "its policy expired {seconds} s ago, by this device's clock"
POLICY_ROUND = "its policy ends with round {last}"
POLICY_TASK = "its policy does not allow the task {task}"
POLICY_WORDS = "its policy does not allow {words}"
POLICY_BOUND = "{name} {value}, its policy allows {most}"
POLICY_BUNDLE = "the bundle's manifest {digest} is not in its policy"
