package org.sedge.edge.rounds;

import org.sedge.edge.codec.Coding;
import org.sedge.edge.codec.Compression;
import org.sedge.edge.codec.SparseVector;
import org.sedge.edge.jobs.Vectors;
import org.sedge.edge.wire.DeviceKeys;
import org.sedge.edge.wire.Digests;
import org.sedge.edge.wire.Frame;
import org.sedge.edge.wire.Hex;
import org.sedge.edge.wire.Kind;
import org.sedge.edge.wire.Manifest;
import org.sedge.edge.wire.Messages.Codec;
import org.sedge.edge.wire.Messages.Committed;
import org.sedge.edge.wire.Messages.Get;
import org.sedge.edge.wire.Messages.Have;
import org.sedge.edge.wire.Messages.Hello;
import org.sedge.edge.wire.Messages.Offer;
import org.sedge.edge.wire.Messages.Order;
import org.sedge.edge.wire.Messages.Step;
import org.sedge.edge.wire.Messages.Training;
import org.sedge.edge.wire.Messages.Welcome;
import org.sedge.edge.wire.Messages.Work;
import org.sedge.edge.wire.ReplayWindow;
import org.sedge.edge.wire.Struct;
import org.sedge.edge.wire.Topics;
import org.sedge.edge.wire.Update;

import java.util.Arrays;
import java.util.BitSet;
import java.util.Collections;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** A coordinator of one device, as WIRE.md has it: round after round, each begun when the one before is committed. */
final class ScriptedCoordinator {
    /** Sends a frame to the device. */
    interface Link {
        void send(String topic, byte[] payload);
    }

    private static final String RUN = "run";
    private static final List<Long> VERSIONS = Frame.VERSIONS;
    private static final int CHUNK_BYTES = 4096;

    /** The payload of each round's update, by round. */
    final Map<Long, String> payloads = new LinkedHashMap<>();
    private final DeviceKeys keys;
    private final Link link;
    private final Manifest bundle;
    private final Map<String, byte[]> shelf = new HashMap<>();
    private final Map<String, Manifest> manifests = new HashMap<>();
    private final Map<Long, String> offered = new HashMap<>();
    private final Map<String, byte[][]> held = new HashMap<>();
    private final Map<String, Offer> offers = new HashMap<>();
    private final ReplayWindow window = new ReplayWindow(0);
    private float[] theta;
    private Order order;
    private long seq;

    ScriptedCoordinator(DeviceKeys keys, byte[] bundle, float[] theta, Link link) throws Exception {
        this.keys = keys;
        this.link = link;
        this.theta = theta;
        this.bundle = put(bundle);
        order = order(1, null);
    }

    long round() {
        return order.round;
    }

    private Manifest put(byte[] blob) {
        Manifest manifest = Manifest.describe(blob, CHUNK_BYTES);
        shelf.put(Hex.encode(manifest.transfer), blob);
        manifests.put(Hex.encode(manifest.transfer), manifest);
        return manifest;
    }

    /** Rounds differ in what they ask; {@code step} leads from the round before. */
    private Order order(long round, Step step) throws Exception {
        byte[] whole = new SparseVector(theta.length, null, theta).encode(Coding.FP32, Compression.ZLIB);
        Training training = Training.SCHEMA.empty().with(Training.LOCAL_EPOCHS, 2L).with(Training.MOMENTUM, 0.5)
                .with(Training.LEARNING_RATE, 0.125)
                .with(Training.OPTIMIZER, round % 5 == 0 ? "adam" : "sgd")
                .with(Training.OPTIMIZER_STATE, round % 7 == 0 ? "reset" : "keep");
        Work work = Work.SCHEMA.empty().with(Work.TRAINING, training);
        if (round % 3 == 0) {
            work = work.with(Work.KEEP, Collections.singletonList("second"));
        }
        if (round % 4 == 0) {
            work = work.with(Work.THEN, Collections.singletonList(training.with(Training.PROX, 0.25)));
        }
        Order made = Order.SCHEMA.empty().with(Order.RUN, RUN).with(Order.ROUND, round).with(Order.TASK, "train")
                .with(Order.BUNDLE, bundle).with(Order.MODEL, put(whole))
                .with(Order.MODEL_HASH, Digests.sha256(Vectors.bytes(theta))).with(Order.WORK, work)
                .with(Order.SEED, round).with(Order.CODEC, Codec.SCHEMA.empty().with(Codec.VALUES, "fp32")
                        .with(Codec.FRACTION, 0.9).with(Codec.COMPRESSION, "zlib"));
        if (round % 2 == 0) {
            byte[] patch = new SparseVector(theta.length, new int[] {3, 70}, new float[] {1, round})
                    .encode(Coding.BF16, Compression.NONE);
            made = made.with(Order.PATCH, patch).with(Order.PATCH_HASH, Digests.sha256(patch));
        }
        return step == null ? made : made.with(Order.STEPS, Collections.singletonList(step));
    }

    private void say(Kind kind, Struct<?> message, byte[] transfer) {
        String topic = Topics.down("test", "pi-1");
        link.send(topic, new Frame(kind, message.encode(), 1, ++seq, transfer, 0).seal(topic, keys.down, 2));
    }

    /** Repeats the order, as after each minute without an answer. */
    void repeat() {
        say(Kind.ORDER, order, null);
    }

    void receive(byte[] payload) throws Exception {
        Frame frame = Frame.open(payload, Topics.up("test", "pi-1"), keys.up, VERSIONS);
        if (frame.kind == Kind.CHUNK) {
            chunk(frame);
            return;
        }
        if (frame.kind == Kind.GOODBYE || !window.accept(frame.incarnation, frame.seq)) {
            return;
        }
        Struct<?> message = frame.message();
        if (frame.kind == Kind.HELLO) {
            say(Kind.WELCOME, Welcome.SCHEMA.empty().with(Welcome.NONCE, ((Hello) message).nonce)
                    .with(Welcome.VERSION, "scripted").with(Welcome.VERSIONS, Frame.VERSIONS), null);
            repeat();
        } else if (frame.kind == Kind.GET) {
            serve(Hex.encode(frame.transfer), ((Get) message).missing);
        } else if (frame.kind == Kind.OFFER) {
            offer(frame, (Offer) message);
        } else {
            throw new AssertionError("the device sent " + frame.kind + " " + new String(frame.body, "ISO-8859-1"));
        }
    }

    private void serve(String transfer, byte[] missing) throws Exception {
        Manifest manifest = manifests.get(transfer);
        BitSet wanted = Manifest.fromBitmap(missing, manifest.count);
        String topic = Topics.blob("test", manifest.transfer);
        for (int i = wanted.nextSetBit(0); i >= 0; i = wanted.nextSetBit(i + 1)) {
            int from = manifest.offset(i);
            byte[] data = Arrays.copyOfRange(shelf.get(transfer), from, from + manifest.length(i));
            link.send(topic, new Frame(Kind.CHUNK, data, 1, 0, manifest.transfer, i).seal(topic, null, 1));
        }
    }

    private void offer(Frame frame, Offer message) throws Exception {
        long round = message.round;
        Manifest manifest = message.manifest;
        String sha256 = Hex.encode(manifest.sha256);
        String before = offered.put(round, sha256);
        if (before != null && !before.equals(sha256)) {
            throw new AssertionError("round " + round + ": a second update, the first one is lost");
        }
        if (payloads.containsKey(round)) {
            commit(round, manifest);
            return;
        }
        String transfer = Hex.encode(manifest.transfer);
        offers.put(transfer, message);
        byte[][] parts = held.computeIfAbsent(transfer, name -> new byte[manifest.count][]);
        if (message.data.length > 0) {
            for (int i = 0; i < parts.length; i++) {
                int from = manifest.offset(i);
                parts[i] = Arrays.copyOfRange(message.data, from, from + manifest.length(i));
            }
        }
        answer(transfer, message.number);
    }

    private void chunk(Frame frame) throws Exception {
        String transfer = Hex.encode(frame.transfer);
        Offer message = offers.get(transfer);
        if (message == null || payloads.containsKey(message.round)) {
            return;
        }
        message.manifest.check(frame.index, frame.body);
        held.get(transfer)[(int) frame.index] = frame.body;
        answer(transfer, 0);
    }

    private void answer(String transfer, long number) throws Exception {
        Offer message = offers.get(transfer);
        Manifest manifest = message.manifest;
        byte[][] parts = held.get(transfer);
        BitSet bits = new BitSet();
        for (int i = 0; i < parts.length; i++) {
            bits.set(i, parts[i] != null);
        }
        if (bits.cardinality() < parts.length) {
            say(Kind.HAVE, Have.SCHEMA.empty().with(Have.NUMBER, number).with(Have.CREDIT, 2L)
                    .with(Have.BITMAP, Manifest.toBitmap(bits, parts.length)), manifest.transfer);
            return;
        }
        java.io.ByteArrayOutputStream blob = new java.io.ByteArrayOutputStream();
        for (byte[] part : parts) {
            blob.write(part);
        }
        taken(message.round, blob.toByteArray());
        commit(message.round, manifest);
    }

    private void commit(long round, Manifest manifest) {
        say(Kind.COMMITTED, Committed.SCHEMA.empty().with(Committed.RUN, RUN).with(Committed.ROUND, round)
                .with(Committed.SHA256, manifest.sha256), manifest.transfer);
    }

    /** Counts an update, closes its round and begins the next one. */
    private void taken(long round, byte[] blob) throws Exception {
        if (round != round()) {
            throw new AssertionError("an update of round " + round + " in round " + round());
        }
        byte[] payload = Update.decode(blob).payload;
        payloads.put(round, Hex.encode(Digests.sha256(payload)));
        SparseVector delta = SparseVector.decode(payload, theta.length);
        byte[] base = Digests.sha256(Vectors.bytes(theta));
        theta = theta.clone();
        delta.addTo(theta);
        byte[] coded = delta.encode(Coding.FP32, Compression.ZLIB);
        order = order(round + 1, Step.SCHEMA.empty().with(Step.BASE_HASH, base).with(Step.BLOB, put(coded)));
        repeat();
    }
}
