// Written by `make spec` from the Python code: changes here are lost.
package org.sedge.edge.wire;

/** A device's messages about refused orders, as in Python. */
public final class Refusals {
    private Refusals() {}

    public static String unannounced(Object where, Object words) {
        return where + ": needs " + words + ", which this device has not announced";
    }

    public static String tooManyRuns(Object where, Object runs, Object orders) {
        return where
                + ": this device keeps "
                + runs
                + " other runs, and none seems to be over: each received one of the last "
                + orders
                + " orders";
    }

    public static String tooManyStarts(Object where, Object starts) {
        return where
                + ": the agent was killed or lost power in each of "
                + starts
                + " attempts, expected one to finish; is there enough memory?";
    }

    public static String outOfMemory(Object where, Object error) {
        return where + ": out of memory while running the job: " + error;
    }

    public static String blobTooLarge(Object blob, Object size, Object most, Object parameters) {
        return blob
                + " of "
                + size
                + " bytes, expected at most "
                + most
                + " for the bundle's "
                + parameters
                + " parameters";
    }

    public static String messageTooLarge(Object size, Object packet, Object most) {
        return "an update of "
                + size
                + " bytes needs messages of "
                + packet
                + " bytes, but the broker accepts "
                + most
                + " (Mosquitto: message_size_limit or max_packet_size)";
    }

    public static String wrongLabel(Object name, Object place, Object value, Object last) {
        return name + "[" + place + "] is " + value + ", but the model has classes 0 to " + last;
    }

    public static String wrongElement(Object name, Object place, Object value, Object last, Object ignored) {
        return name
                + "["
                + place
                + "] is "
                + value
                + ", but the model has classes 0 to "
                + last
                + "; "
                + ignored
                + " marks an element that does not count";
    }

    public static String wrongToken(Object name, Object place, Object value, Object last) {
        return name
                + "["
                + place
                + "] is "
                + value
                + ", but the model knows 0 to "
                + last
                + ": use one of these for all others";
    }

    public static String otherLayout(Object where) {
        return where + ": the bundle's tensors are not those of its origin, whose state this device keeps";
    }

    public static String nothingCounts(Object name, Object row, Object ignored) {
        return name + "[" + row + "] holds only " + ignored + ", so none of it counts: leave the row out";
    }

    public static String nothingCounted(Object count) {
        return "evaluation: the weights of the " + count + " examples add up to 0, expected one that counts";
    }

    public static String wrongModel(Object where) {
        return where + ": model_hash does not match the model";
    }

    public static String wrongSteps(Object where, Object steps) {
        return where + ": model_hash does not match the last of " + steps + " steps";
    }

    public static String wrongPatch(Object where) {
        return where + ": patch_hash does not match";
    }

    public static String unsigned(Object keys) {
        return "no signed policy, expected one signed by a key that this device trusts: " + keys;
    }

    public static String cutPolicy(Object size, Object least) {
        return "a policy of " + size + " bytes, expected more than the " + least + " of its signature";
    }

    public static String foreignKey(Object key, Object keys) {
        return "its policy is signed by the key " + key + ", but this device trusts " + keys;
    }

    public static String replacedKey(Object key, Object newest) {
        return "its policy is signed by the key " + key + ", which this fleet has replaced by " + newest;
    }

    public static String badSignature(Object key) {
        return "its policy does not match its signature by the key " + key;
    }

    public static String unreadablePolicy() {
        return "its policy breaks the schema, expected one made by `sedge-cloud run sign`";
    }

    public static String otherRun(Object run) {
        return "its policy is for run " + run;
    }

    public static String oldPolicy(Object version, Object taken) {
        return "its policy has version " + version + ", but this device has already accepted version " + taken;
    }

    public static String expiredPolicy(Object seconds) {
        return "its policy expired " + seconds + " s ago, by this device's clock";
    }

    public static String policyRound(Object last) {
        return "its policy ends with round " + last;
    }

    public static String policyTask(Object task) {
        return "its policy does not allow the task " + task;
    }

    public static String policyWords(Object words) {
        return "its policy does not allow " + words;
    }

    public static String policyBound(Object name, Object value, Object most) {
        return name + " " + value + ", but its policy allows " + most;
    }

    public static String policyBundle(Object digest) {
        return "the bundle's manifest " + digest + " is not in its policy";
    }
}
