package org.sedge.edge.rounds;

import org.sedge.edge.SedgeException.CodecError;
import org.sedge.edge.SedgeException.PolicyError;
import org.sedge.edge.SedgeException.StorageError;
import org.sedge.edge.rounds.State.TakenPolicy;
import org.sedge.edge.wire.Hex;
import org.sedge.edge.wire.Messages.Order;
import org.sedge.edge.wire.Messages.Policy;
import org.sedge.edge.wire.Messages.Training;
import org.sedge.edge.wire.Messages.Work;
import org.sedge.edge.wire.PinnedKeys;
import org.sedge.edge.wire.Refusals;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Set;

/**
 * Decides whose orders the device accepts. Each needs a policy that was signed by a pinned key or by its successor
 * (spec/policy.md).
 */
final class Trust {
    private static final int HEAD_BYTES = PinnedKeys.HEAD_BYTES;
    private static final byte[] CONTEXT = "sedge policy 1\n".getBytes(StandardCharsets.US_ASCII);

    private final PinnedKeys keys;
    private final BlobLimits bundles;
    private final StateStore store;
    private final Budget budget;

    Trust(PinnedKeys keys, BlobLimits bundles, StateStore store, Budget budget) {
        this.keys = keys;
        this.bundles = bundles;
        this.store = store;
        this.budget = budget;
    }

    /** Returns the policy of an order that passed {@link #check}, or null if no keys are pinned. */
    TakenPolicy policyOf(Order order) throws PolicyError {
        if (keys.isEmpty()) {
            return null;
        }
        requireWhole(order.policy);
        byte[] key = Arrays.copyOf(order.policy, PinnedKeys.ID_BYTES);
        return TakenPolicy.SCHEMA.empty().with(TakenPolicy.VERSION, policy(order).version).with(TakenPolicy.KEY, key);
    }

    /** Commits the key replacements in the policy of an order that passed {@link #check}. */
    void learn(Order order) throws StorageError {
        if (!keys.isEmpty()) {
            store.replaceKeys(learned(order));
        }
    }

    /**
     * Checks an order's policy, as far as is possible before the bundle has arrived.
     *
     * @throws PolicyError if the order is not allowed
     */
    void check(Order order) throws PolicyError, CodecError, StorageError {
        if (keys.isEmpty()) {
            return;
        }
        if (order.policy.length == 0) {
            throw new PolicyError(Refusals.unsigned(keys.after(store.state().replaced).ids()));
        }
        requireWhole(order.policy);
        Map<String, byte[]> replaced = learned(order);
        PinnedKeys counting = keys.after(replaced);
        requireSigned(order.policy, counting, replaced);
        Policy policy = policy(order);
        requireCurrent(order.run, policy, counting);
        requireAllowed(policy, order);
        byte[] manifest = bundles.manifestHash(order.bundle.sha256);
        if (manifest != null && !contains(policy.bundles, manifest)) {
            throw new PolicyError(Refusals.policyBundle(Hex.encode(manifest).substring(0, 16)));
        }
    }

    /**
     * Returns the known key replacements plus those in the order's policy. An unreadable policy adds none here; it is
     * refused later.
     */
    private Map<String, byte[]> learned(Order order) {
        Map<String, byte[]> replaced = store.state().replaced;
        try {
            return keys.learned(replaced, policy(order).chain);
        } catch (PolicyError error) {
            return replaced;
        }
    }

    private static void requireWhole(byte[] sealed) throws PolicyError {
        if (sealed.length <= HEAD_BYTES) {
            throw new PolicyError(Refusals.cutPolicy(sealed.length, HEAD_BYTES));
        }
    }

    private static void requireSigned(byte[] sealed, PinnedKeys counting, Map<String, byte[]> replaced)
            throws PolicyError {
        String key = Hex.encode(Arrays.copyOf(sealed, PinnedKeys.ID_BYTES));
        String newest = PinnedKeys.newest(key, replaced);
        if (!counting.has(newest)) {
            throw new PolicyError(Refusals.foreignKey(key, counting.ids()));
        }
        if (!newest.equals(key)) {
            throw new PolicyError(Refusals.replacedKey(key, newest));
        }
        int length = sealed.length - HEAD_BYTES;
        byte[] signed = Arrays.copyOf(CONTEXT, CONTEXT.length + length);
        System.arraycopy(sealed, HEAD_BYTES, signed, CONTEXT.length, length);
        if (!counting.verify(key, Arrays.copyOfRange(sealed, PinnedKeys.ID_BYTES, HEAD_BYTES), signed)) {
            throw new PolicyError(Refusals.badSignature(key));
        }
    }

    private static Policy policy(Order order) throws PolicyError {
        try {
            return Policy.SCHEMA.decode(Arrays.copyOfRange(order.policy, HEAD_BYTES, order.policy.length));
        } catch (IllegalArgumentException error) {
            throw new PolicyError(Refusals.unreadablePolicy());
        }
    }

    private void requireCurrent(String run, Policy policy, PinnedKeys counting) throws PolicyError {
        TakenPolicy last = store.state().policies.get(run);
        // Policies signed by a key that has been replaced do not count here, because that key may have been stolen.
        if (last != null && counting.has(Hex.encode(last.key)) && policy.version < last.version) {
            throw new PolicyError(Refusals.oldPolicy(policy.version, last.version));
        }
        // A clock without a battery may start in the past, but the current time cannot precede an earlier start.
        long clockS = Math.max((long) budget.clockS(), store.state().incarnation);
        if (policy.expires > 0 && clockS >= policy.expires) {
            throw new PolicyError(Refusals.expiredPolicy(clockS - policy.expires));
        }
    }

    private static void requireAllowed(Policy policy, Order order) throws PolicyError {
        if (!policy.run.equals(order.run)) {
            throw new PolicyError(Refusals.otherRun(policy.run));
        }
        if (order.round > policy.lastRound) {
            throw new PolicyError(Refusals.policyRound(policy.lastRound));
        }
        if (!policy.tasks.contains(order.task)) {
            throw new PolicyError(Refusals.policyTask(order.task));
        }
        Set<String> beyond = Abilities.words(order);
        beyond.removeAll(policy.words);
        if (!beyond.isEmpty()) {
            throw new PolicyError(Refusals.policyWords(String.join(", ", beyond)));
        }
        long epochs = 0;
        double rate = 0;
        double momentum = 0;
        double prox = 0;
        for (Training training : trainings(order.work)) {
            epochs += training.localEpochs;
            rate = Math.max(rate, training.learningRate * Math.max(1, training.endFactor));
            momentum = Math.max(momentum, training.momentum);
            prox = Math.max(prox, training.prox);
        }
        if (epochs > policy.localEpochs) {
            throw new PolicyError(Refusals.policyBound("local_epochs", epochs, policy.localEpochs));
        }
        require("learning_rate", rate, policy.learningRate);
        require("momentum", momentum, policy.momentum);
        require("prox", prox, policy.prox);
    }

    private static void require(String name, double value, double most) throws PolicyError {
        if (value > most) {
            throw new PolicyError(Refusals.policyBound(name, value, most));
        }
    }

    /**
     * Returns all of the order's training phases. An order to train the device's own model would have more, but
     * {@link Abilities} refuses such orders.
     */
    private static List<Training> trainings(Work work) {
        List<Training> found = new ArrayList<>(work.then);
        found.add(work.training == null ? Training.SCHEMA.empty() : work.training);
        return found;
    }

    private static boolean contains(List<byte[]> hashes, byte[] wanted) {
        for (byte[] hash : hashes) {
            if (Arrays.equals(hash, wanted)) {
                return true;
            }
        }
        return false;
    }
}
