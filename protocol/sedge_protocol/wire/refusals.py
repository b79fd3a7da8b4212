"""Message templates for refusing an order, the same in every language (``make spec``).

A message says what is wrong, where, and what was expected. ``where`` names the order, such as "run a, round
2".
"""

UNANNOUNCED = "{where}: needs {words}, which this device has not announced"
TOO_MANY_RUNS = (
    "{where}: this device keeps {runs} other runs, and none seems to be over: each received one of the "
    "last {orders} orders"
)
TOO_MANY_STARTS = (
    "{where}: the agent was killed or lost power in each of {starts} attempts, expected one to finish; "
    "is there enough memory?"
)
OUT_OF_MEMORY = "{where}: out of memory while running the job: {error}"
BLOB_TOO_LARGE = (
    "{blob} of {size} bytes, expected at most {most} for the bundle's {parameters} parameters"
)
MESSAGE_TOO_LARGE = (
    "an update of {size} bytes needs messages of {packet} bytes, but the broker accepts {most} (Mosquitto: "
    "message_size_limit or max_packet_size)"
)
WRONG_LABEL = "{name}[{place}] is {value}, but the model has classes 0 to {last}"
WRONG_ELEMENT = (
    "{name}[{place}] is {value}, but the model has classes 0 to {last}; {ignored} marks an element that "
    "does not count"
)
WRONG_TOKEN = (
    "{name}[{place}] is {value}, but the model knows 0 to {last}: use one of these for all others"
)
OTHER_LAYOUT = (
    "{where}: the bundle's tensors are not those of its origin, whose state this device keeps"
)
NOTHING_COUNTS = "{name}[{row}] holds only {ignored}, so none of it counts: leave the row out"
NOTHING_COUNTED = (
    "evaluation: the weights of the {count} examples add up to 0, expected one that counts"
)
WRONG_MODEL = "{where}: model_hash does not match the model"
WRONG_STEPS = "{where}: model_hash does not match the last of {steps} steps"
WRONG_PATCH = "{where}: patch_hash does not match"
UNSIGNED = "no signed policy, expected one signed by a key that this device trusts: {keys}"
CUT_POLICY = "a policy of {size} bytes, expected more than the {least} of its signature"
FOREIGN_KEY = "its policy is signed by the key {key}, but this device trusts {keys}"
REPLACED_KEY = "its policy is signed by the key {key}, which this fleet has replaced by {newest}"
BAD_SIGNATURE = "its policy does not match its signature by the key {key}"
UNREADABLE_POLICY = "its policy breaks the schema, expected one made by `sedge-cloud run sign`"
OTHER_RUN = "its policy is for run {run}"
OLD_POLICY = (
    "its policy has version {version}, but this device has already accepted version {taken}"
)
EXPIRED_POLICY = "its policy expired {seconds} s ago, by this device's clock"
POLICY_ROUND = "its policy ends with round {last}"
POLICY_TASK = "its policy does not allow the task {task}"
POLICY_WORDS = "its policy does not allow {words}"
POLICY_BOUND = "{name} {value}, but its policy allows {most}"
POLICY_BUNDLE = "the bundle's manifest {digest} is not in its policy"
