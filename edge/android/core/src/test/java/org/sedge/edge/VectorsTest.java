package org.sedge.edge;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertThrows;
import static org.junit.Assert.assertNull;
import static org.junit.Assert.assertTrue;

import org.junit.Test;
import org.sedge.edge.SedgeException.RemoteError;
import org.sedge.edge.codec.Coding;
import org.sedge.edge.codec.Compression;
import org.sedge.edge.codec.Selection;
import org.sedge.edge.codec.SparseVector;
import org.sedge.edge.training.Batches;
import org.sedge.edge.training.CounterStream;
import org.sedge.edge.training.Optimizer;
import org.sedge.edge.SedgeException.FrameError;
import org.sedge.edge.wire.Agreement;
import org.sedge.edge.wire.Bundle;
import org.sedge.edge.wire.DeviceKeys;
import org.sedge.edge.wire.Digests;
import org.sedge.edge.wire.Fetch;
import org.sedge.edge.wire.Frame;
import org.sedge.edge.wire.Hex;
import org.sedge.edge.wire.Json;
import org.sedge.edge.wire.Kind;
import org.sedge.edge.wire.Layout;
import org.sedge.edge.wire.Manifest;
import org.sedge.edge.wire.Messages.Cancel;
import org.sedge.edge.wire.Messages.Decline;
import org.sedge.edge.wire.Messages.Goodbye;
import org.sedge.edge.wire.Messages.Training;
import org.sedge.edge.wire.Messages.Welcome;
import org.sedge.edge.wire.MsgPack;
import org.sedge.edge.wire.OnnxProgram;
import org.sedge.edge.wire.Peer;
import org.sedge.edge.wire.PinnedKeys;
import org.sedge.edge.wire.Reconnect;
import org.sedge.edge.wire.ReplayWindow;
import org.sedge.edge.wire.Struct;
import org.sedge.edge.wire.Topics;
import org.sedge.edge.wire.Update;
import org.sedge.edge.wire.Upload;

import java.math.BigInteger;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.security.KeyFactory;
import java.security.KeyPairGenerator;
import java.security.interfaces.ECPrivateKey;
import java.security.interfaces.ECPublicKey;
import java.security.spec.ECGenParameterSpec;
import java.security.spec.ECParameterSpec;
import java.security.spec.ECPrivateKeySpec;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.BitSet;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Random;
import java.util.stream.Collectors;

/** Decodes, encodes and refuses the test vectors that every implementation must pass (tests/vectors). */
public class VectorsTest {
    private static final Map<?, ?> SPARSE = vectors("sparse");
    private static final Map<?, ?> FRAMES = vectors("frames");
    private static final Map<?, ?> TRACE = vectors("trace");
    private static final Map<?, ?> SPEC = vectors("spec");
    private static final List<Long> VERSIONS = Frame.VERSIONS;

    /** Checks one case, which fails if this throws an {@link AssertionError} or any exception. */
    private interface Case {
        void run(Map<?, ?> given) throws Exception;
    }

    private static Map<?, ?> vectors(String name) {
        try {
            byte[] text = Files.readAllBytes(Paths.get(System.getProperty("sedge.vectors"), name + ".json"));
            return (Map<?, ?>) Json.parse(new String(text, StandardCharsets.UTF_8));
        } catch (java.io.IOException error) {
            throw new AssertionError(error);
        }
    }

    /** Checks every case of a group, then fails with a list of all cases that did not pass. */
    private static void all(Map<?, ?> file, String group, Case check) {
        List<String> failed = new ArrayList<>();
        List<?> cases = (List<?>) file.get(group);
        assertTrue(group, cases.size() > 0);
        for (Object one : cases) {
            Map<?, ?> given = (Map<?, ?>) one;
            try {
                check.run(given);
            } catch (Exception | AssertionError error) {
                Object name = given.containsKey("name") ? given.get("name") : given.get("rule");
                failed.add(group + " '" + name + "': " + error);
            }
        }
        assertEquals(Collections.emptyList(), failed);
    }

    private static void refuses(Case check, Map<?, ?> given) throws Exception {
        try {
            check.run(given);
        } catch (RemoteError expected) {
            return;
        }
        throw new AssertionError("was taken");
    }

    private static byte[] bytes(Map<?, ?> given, String key) {
        return given.get(key) == null ? null : Hex.decode((String) given.get(key));
    }

    private static int integer(Map<?, ?> given, String key) {
        return ((Long) given.get(key)).intValue();
    }

    private static float[] floats(byte[] data) {
        float[] found = new float[data.length / 4];
        ByteBuffer.wrap(data).order(ByteOrder.LITTLE_ENDIAN).asFloatBuffer().get(found);
        return found;
    }

    private static String hex(float[] values) {
        ByteBuffer out = ByteBuffer.allocate(4 * values.length).order(ByteOrder.LITTLE_ENDIAN);
        out.asFloatBuffer().put(values);
        return Hex.encode(out.array());
    }

    private static int[] ints(Object list) {
        return list == null ? null : ((List<?>) list).stream().mapToInt(i -> ((Long) i).intValue()).toArray();
    }

    /** Returns true if a vector uses zstd or an extension's mask context. This client announces neither. */
    private static boolean needsMore(byte[] coded) {
        return coded.length > 2 && ((coded[1] & 15) == 4 || coded[1] >> 4 == 2 || coded[2] >> 4 == 2);
    }

    private static SparseVector decoded(Map<?, ?> given) throws RemoteError {
        return SparseVector.decode(bytes(given, "coded"), integer(given, "size"));
    }

    private static void decodes(Map<?, ?> given) throws Exception {
        if (needsMore(bytes(given, "coded"))) {
            refuses(VectorsTest::decoded, given);
            return;
        }
        SparseVector found = decoded(given);
        assertEquals(given.get("decoded"), hex(found.values));
        assertEquals(Arrays.toString(ints(given.get("indices"))), Arrays.toString(found.indices));
    }

    private static void encodes(Map<?, ?> given) throws Exception {
        int[] indices = ints(given.get("indices"));
        SparseVector vector = new SparseVector(integer(given, "size"), indices, floats(bytes(given, "values")));
        Coding coding = Coding.valueOf(((String) given.get("coding")).toUpperCase());
        Compression compression = given.get("compression").equals("none") ? Compression.NONE : Compression.ZLIB;
        byte[] coded = vector.encode(coding, compression);
        if (compression == Compression.NONE && !needsMore(bytes(given, "coded"))) {
            assertEquals(given.get("coded"), Hex.encode(coded));
        }
        SparseVector found = SparseVector.decode(coded, vector.size);
        assertEquals(given.get("decoded"), hex(found.values));
        assertEquals(Arrays.toString(indices), Arrays.toString(found.indices));
        assertEquals(given.get("decoded"), hex(coding.decoded(vector.values)));
    }

    @Test
    public void codedVectors() {
        all(SPARSE, "accepted", VectorsTest::decodes);
        all(SPARSE, "readable", VectorsTest::decodes);
        all(SPARSE, "accepted", VectorsTest::encodes);
        all(SPARSE, "refused", given -> refuses(VectorsTest::decoded, given));
    }

    @Test
    public void keys() {
        all(FRAMES, "keys", given -> {
            DeviceKeys keys = new DeviceKeys(bytes(given, "secret"));
            assertEquals(given.get("up"), Hex.encode(keys.up));
            assertEquals(given.get("down"), Hex.encode(keys.down));
            assertEquals(given.get("password"), keys.password);
        });
    }

    @Test
    public void layouts() {
        all(FRAMES, "layouts", given -> {
            List<Object> tensors = new ArrayList<>();
            long offset = 0;
            for (Object one : (List<?>) given.get("tensors")) {
                List<?> tensor = (List<?>) one;
                Map<String, Object> row = new HashMap<>();
                row.put("name", tensor.get(0));
                row.put("shape", tensor.get(1));
                row.put("role", tensor.get(2));
                row.put("offset", offset);
                tensors.add(row);
                long elements = 1;
                for (Object extent : (List<?>) tensor.get(1)) {
                    elements *= (Long) extent;
                }
                offset += elements;
            }
            Layout layout = Layout.TYPE.read(Collections.singletonMap("tensors", tensors));
            assertEquals(given.get("hash"), Hex.encode(layout.hash));
            assertEquals(offset, layout.size);
        });
    }

    @Test
    public void manifestsAndBitmaps() {
        all(FRAMES, "manifests", given -> {
            byte[] blob = new byte[integer(given, "size")];
            for (int i = 0; i < blob.length; i++) {
                blob[i] = (byte) (31 * i + (i >> 8));
            }
            Manifest made = Manifest.describe(blob, integer(given, "chunk_bytes"));
            Manifest read = Manifest.SCHEMA.read(MsgPack.unpack(bytes(given, "packed"), Manifest.SCHEMA));
            for (Manifest manifest : Arrays.asList(made, read)) {
                assertEquals(given.get("packed"), Hex.encode(MsgPack.pack(manifest)));
                assertEquals(given.get("transfer"), Hex.encode(manifest.transfer));
            }
        });
        all(FRAMES, "refused_manifests", given -> {
            try {
                Manifest.SCHEMA.read(MsgPack.unpack(bytes(given, "packed"), Manifest.SCHEMA));
            } catch (IllegalArgumentException expected) {
                return;
            }
            throw new AssertionError("was taken");
        });
        all(FRAMES, "topics", given -> {
            String fleet = (String) given.get("fleet");
            String device = (String) given.get("device");
            assertEquals(given.get("up"), Topics.up(fleet, device));
            assertEquals(given.get("down"), Topics.down(fleet, device));
            assertEquals(given.get("hint"), Topics.hint(fleet, device));
        });
        all(FRAMES, "bitmaps", given -> {
            BitSet found = Manifest.fromBitmap(bytes(given, "bitmap"), integer(given, "count"));
            assertEquals(Arrays.toString(ints(given.get("indices"))), Arrays.toString(found.stream().toArray()));
            assertEquals(given.get("bitmap"), Hex.encode(Manifest.toBitmap(found, integer(given, "count"))));
        });
        all(FRAMES, "refused_bitmaps", given -> refuses(
                one -> Manifest.fromBitmap(bytes(one, "bitmap"), integer(one, "count")), given));
    }

    private static Frame opened(Map<?, ?> given) throws RemoteError {
        return Frame.open(bytes(given, "sealed"), (String) given.get("topic"), bytes(given, "key"), VERSIONS);
    }

    private static void opens(Map<?, ?> given) throws Exception {
        Frame frame = opened(given);
        assertEquals(integer(given, "kind"), frame.kind.number());
        assertEquals(given.get("incarnation"), frame.incarnation);
        assertEquals(given.get("seq"), frame.seq);
        assertEquals(given.get("transfer"), Hex.encode(frame.transfer));
        assertEquals(given.get("index"), frame.index);
        assertEquals(given.get("body"), Hex.encode(frame.body));
        if (given.containsKey("message")) {
            Struct<?> message = frame.message();
            assertEquals(message, message(frame.kind, given.get("message")));
        }
    }

    private static Struct<?> message(Kind kind, Object json) {
        return kind.schema.decode(MsgPack.pack(native_(json)));
    }

    /** Converts the JSON representation of a message back: an object whose only key is "hex" stands for bytes. */
    private static Object native_(Object json) {
        if (json instanceof Map) {
            if (((Map<?, ?>) json).keySet().equals(Collections.singleton("hex"))) {
                return Hex.decode((String) ((Map<?, ?>) json).get("hex"));
            }
            Map<String, Object> found = new java.util.LinkedHashMap<>();
            ((Map<?, ?>) json).forEach((key, value) -> found.put((String) key, native_(value)));
            return found;
        }
        if (json instanceof List) {
            List<Object> found = new ArrayList<>();
            ((List<?>) json).forEach(value -> found.add(native_(value)));
            return found;
        }
        return json;
    }

    @Test
    public void frames() {
        all(FRAMES, "frames", VectorsTest::opens);
        all(FRAMES, "readable", VectorsTest::opens);
        all(TRACE, "frames", VectorsTest::opens);
        all(FRAMES, "frames", VectorsTest::seals);
        all(TRACE, "frames", VectorsTest::seals);
        all(FRAMES, "refused_frames", given -> refuses(VectorsTest::opened, given));
        all(FRAMES, "refused_bodies", given -> refuses(one -> new Frame(
                Kind.of(integer(one, "kind")), bytes(one, "body"), 1, 1, null, 0).message(), given));
    }

    private static void seals(Map<?, ?> given) throws Exception {
        Kind kind = Kind.of(integer(given, "kind"));
        // An ORDER, which no device sends, is not encoded again: its inner maps are not in their shortest form.
        boolean ours = given.containsKey("message") && kind != Kind.ORDER;
        byte[] body = ours ? message(kind, given.get("message")).encode() : bytes(given, "body");
        assertEquals(given.get("body"), Hex.encode(body));
        Frame frame = new Frame(kind, body, (Long) given.get("incarnation"), (Long) given.get("seq"),
                bytes(given, "transfer"), (Long) given.get("index"));
        assertEquals(given.get("sealed"),
                Hex.encode(frame.seal((String) given.get("topic"), bytes(given, "key"), 2)));
    }

    /** Decoded into lists, these bytes would take more memory than this JVM's heap. */
    @Test
    public void whatAKeyHoldsThatNobodyKnowsTakesNoMemory() {
        byte[] sound = Goodbye.SCHEMA.empty().with(Goodbye.NONCE, new byte[16]).encode();
        int count = 5_000_000;
        ByteBuffer body = ByteBuffer.allocate(sound.length + 7 + count);
        body.put((byte) 0x82).put(sound, 1, sound.length - 1).put((byte) 0xa1).put((byte) 'z');
        body.put((byte) 0xdd).putInt(count);
        while (body.hasRemaining()) {
            body.put((byte) 0x90);
        }
        assertEquals(16, Goodbye.SCHEMA.decode(body.array()).nonce.length);
    }

    @Test
    public void updates() {
        all(FRAMES, "updates", given -> {
            Update update = Update.decode(bytes(given, "blob"));
            assertEquals(given.get("payload"), Hex.encode(update.payload));
            assertEquals(Hex.encode(shortest(bytes(given, "blob"))), Hex.encode(update.encode()));
        });
    }

    /**
     * Re-encodes an update's report, which is a map, in its shortest form. A device may also send the map with a 16-bit
     * count.
     */
    private static byte[] shortest(byte[] blob) {
        if (blob[4] != (byte) 0xde || blob[6] > 15) {
            return blob;
        }
        ByteBuffer in = ByteBuffer.wrap(blob).order(ByteOrder.LITTLE_ENDIAN);
        return ByteBuffer.allocate(blob.length - 2).order(ByteOrder.LITTLE_ENDIAN).putInt(in.getInt() - 2)
                .put((byte) (0x80 | blob[6])).put(blob, 7, blob.length - 7).array();
    }

    @Test
    public void replay() {
        all(SPEC, "replay", given -> {
            ReplayWindow window = new ReplayWindow(0);
            List<Object> verdicts = new ArrayList<>();
            for (Object frame : (List<?>) given.get("frames")) {
                verdicts.add(window.accept((Long) ((List<?>) frame).get(0), (Long) ((List<?>) frame).get(1)));
            }
            assertEquals(given.get("accepted"), verdicts);
        });
    }

    @Test
    public void openings() {
        byte[] nonce = new byte[16];
        Arrays.fill(nonce, (byte) 7);
        Welcome welcomed = Welcome.SCHEMA.empty().with(Welcome.VERSION, "v").with(Welcome.VERSIONS, Frame.VERSIONS);
        byte[] foreign = welcomed.with(Welcome.NONCE, new byte[16]).encode();
        byte[] awaited = welcomed.with(Welcome.NONCE, nonce).encode();
        byte[] cancel = Cancel.SCHEMA.empty().with(Cancel.RUN, "run").with(Cancel.ROUND, 0L).with(Cancel.REASON, "")
                .encode();
        byte[] goodbye = Goodbye.SCHEMA.empty().with(Goodbye.NONCE, new byte[16]).encode();
        all(SPEC, "openings", given -> {
            DeviceKeys keys = new DeviceKeys(new byte[32]);
            Peer peer = new Peer("up", keys, 1, 0);
            peer.awaited = nonce;
            List<Object> taken = new ArrayList<>();
            for (Object one : (List<?>) given.get("frames")) {
                List<?> frame = (List<?>) one;
                boolean welcome = frame.get(0).equals("WELCOME");
                byte[] body = frame.get(3).equals("bad") ? new byte[1] : frame.get(0).equals("GOODBYE") ? goodbye
                        : !welcome ? cancel : frame.get(3).equals("awaited") ? awaited : foreign;
                byte[] sealed = new Frame(Kind.valueOf((String) frame.get(0)), body, (Long) frame.get(1),
                        (Long) frame.get(2), null, 0).seal("down", keys.down, 2);
                boolean good = false;
                try {
                    good = !peer.open(sealed, "down").replayed;
                } catch (RemoteError bad) {
                    assertEquals("bad", frame.get(3));
                }
                taken.add(good);
                peer.awaited = good && body == awaited ? null : peer.awaited;
            }
            assertEquals(given.get("taken"), taken);
        });
    }

    @Test
    public void agreements() {
        all(SPEC, "agreements", given -> {
            DeviceKeys keys = new DeviceKeys(new byte[32]);
            Peer peer = new Peer("up", keys, 1, 0, longs(given.get("device")));
            speaks(peer, keys, (Long) given.get("first"));
            try {
                peer.agree(longs(given.get("coordinator")));
            } catch (RemoteError none) {
                assertNull(given.get("then"));
                return;
            }
            speaks(peer, keys, (Long) given.get("then"));
        });
    }

    private static List<Long> longs(Object list) {
        return ((List<?>) list).stream().map(one -> (Long) one).collect(Collectors.toList());
    }

    private static List<String> strings(Object list) {
        return ((List<?>) list).stream().map(one -> (String) one).collect(Collectors.toList());
    }

    /** A DECLINE is not frozen, so its version is the one that the peer speaks. */
    private static void speaks(Peer peer, DeviceKeys keys, long version) throws RemoteError {
        byte[] sealed = peer.seal(Kind.DECLINE, Decline.SCHEMA.empty().with(Decline.RUN, "line")
                .with(Decline.ROUND, 1L).with(Decline.REASON, "x"), null);
        Frame.open(sealed, "up", keys.up, Collections.singletonList(version));
    }

    @Test
    public void patience() {
        Manifest manifest = Manifest.describe(new byte[64 * 4096], 4096);
        all(SPEC, "patience", given -> {
            Fetch fetch = new Fetch(manifest, new BitSet(), new Random(0));
            fetch.connected(0);
            fetch.poll(0);
            List<Object> found = new ArrayList<>();
            boolean first = true;
            for (Object one : (List<?>) given.get("arrivals")) {
                Map<?, ?> event = one instanceof Map ? (Map<?, ?>) one : Collections.singletonMap("chunk", one);
                double now = ((Number) event.values().iterator().next()).doubleValue();
                while (fetch.timer() <= now) {
                    fetch.poll(fetch.timer());
                }
                if (event.containsKey("woken")) {
                    fetch.woken(now);
                } else if (event.containsKey("cut")) {
                    fetch.disconnected();
                    fetch.connected(now);
                    first = true;
                } else {
                    fetch.chunk(fetch.have.cardinality(), new byte[4096], now);
                    if (!first) {
                        found.add(fetch.timer() - now);
                    }
                    first = false;
                }
                fetch.poll(now);
            }
            List<?> timers = (List<?>) given.get("timers");
            assertEquals(timers.size(), found.size());
            for (int i = 0; i < timers.size(); i++) {
                assertEquals(((Number) timers.get(i)).doubleValue(), (Double) found.get(i), 1e-9);
            }
        });
    }

    @Test
    public void shufflesAndBatches() {
        all(SPEC, "shuffles", given -> {
            List<?> epochs = (List<?>) given.get("epochs");
            for (int epoch = 0; epoch < epochs.size(); epoch++) {
                int[] found = CounterStream.permutation((Long) given.get("seed"), epoch, integer(given, "examples"));
                assertEquals(Arrays.toString(ints(epochs.get(epoch))), Arrays.toString(found));
            }
        });
        all(SPEC, "batches", given -> {
            Batches batches = new Batches(integer(given, "examples"), integer(given, "batch_size"),
                    (String) given.get("last_batch"), !(Boolean) given.get("uses_batch_statistics"),
                    (Long) given.get("seed"));
            List<Object> found = new ArrayList<>();
            for (long epoch = 0; epoch < 2; epoch++) {
                for (Batches.Batch batch : batches.epoch()) {
                    List<Object> rows = new ArrayList<>();
                    List<Object> weights = new ArrayList<>();
                    for (int i = 0; i < batch.rows.length; i++) {
                        rows.add((long) batch.rows[i]);
                        weights.add(i < batch.used ? 1.0 : 0.0);
                    }
                    found.add(Arrays.asList(epoch, rows, weights));
                }
            }
            assertEquals(given.get("batches"), found);
        });
    }

    @Test
    public void randomNumbers() {
        all(SPEC, "noises", given -> {
            List<Object> found = new ArrayList<>();
            int count = ((List<?>) given.get("numbers")).size();
            for (float number : CounterStream.noise((Long) given.get("seed"), (Long) given.get("step"), count)) {
                found.add((double) number);
            }
            assertEquals(given.get("numbers"), found);
        });
        all(SPEC, "further_seeds", given -> assertEquals(given.get("further"),
                CounterStream.furtherSeed((Long) given.get("seed"), (Long) given.get("training"))));
    }

    @Test
    public void rates() {
        all(SPEC, "rates", given -> {
            Training training = Training.SCHEMA.read(given);
            List<Object> found = new ArrayList<>();
            for (long step = 0; step < integer(given, "steps"); step++) {
                found.add(Optimizer.rate(training, step, integer(given, "steps")));
            }
            assertEquals(given.get("rates"), found);
        });
    }

    @Test
    public void errorFeedback() {
        all(SPEC, "error_feedback", given -> {
            String values = (String) given.get("values");
            Coding coding = Coding.valueOf(values.toUpperCase());
            float[] owed = new float[integer(given, "size")];
            for (Object one : (List<?>) given.get("rounds")) {
                Map<?, ?> round = (Map<?, ?>) one;
                float[] delta = floats(bytes(round, "change"));
                for (int i = 0; i < owed.length; i++) {
                    delta[i] += owed[i];
                }
                SparseVector chosen = Selection.select(delta, ((Number) given.get("fraction")).doubleValue(),
                        ((Number) given.get("threshold")).doubleValue(), coding == Coding.BF16);
                assertEquals(round.get("coded"), Hex.encode(chosen.encode(coding, Compression.NONE)));
                float[] sent = coding.decoded(chosen.values);
                for (int i = 0; i < sent.length; i++) {
                    delta[chosen.at(i)] -= sent[i];
                }
                owed = delta;
                assertEquals(round.get("owed"), hex(owed));
            }
        });
    }

    @Test
    public void versions() {
        all(SPEC, "versions", given -> {
            float[] theta = floats(bytes(given, "base"));
            SparseVector.decode(bytes(given, "step"), theta.length).addTo(theta);
            assertEquals(given.get("model"), hex(theta));
            assertEquals(given.get("model_hash"), Hex.encode(Digests.sha256(Hex.decode(hex(theta)))));
        });
    }

    /** Names and strings come from the peer, so an error that is logged must show them on one line. */
    @Test
    public void refusalsAreOneLine() {
        byte[] program = Hex.decode("3a070a052203610a62"); // a graph of one node, whose operator is "a\nb"
        RemoteError error = assertThrows(RemoteError.class, () -> OnnxProgram.check(program));
        assertTrue(error.getMessage(), error.getMessage().endsWith("operator '.a?b', which is not allowed in a program"));
        Frame welcome = new Frame(Kind.WELCOME, Hex.decode("81a56e6f6e6365a3610a62"), 1, 1, null, 0);
        error = assertThrows(RemoteError.class, welcome::message);
        assertEquals("WELCOME: nonce: found 'a?b', expected 16 to 16 bytes", error.getMessage());
    }

    @Test
    public void bundlesAndPrograms() {
        all(SPEC, "bundles", given -> {
            if ((Boolean) given.get("accepted")) {
                assertEquals(7, Bundle.unpack(bytes(given, "blob")).layout.size);
            } else {
                refuses(one -> Bundle.unpack(bytes(one, "blob")), given);
            }
        });
        all(SPEC, "programs", given -> {
            if ((Boolean) given.get("accepted")) {
                OnnxProgram.check(bytes(given, "program"));
            } else {
                refuses(one -> OnnxProgram.check(bytes(one, "program")), given);
            }
        });
    }

    @Test
    public void joinTexts() {
        all(SPEC, "join_texts", given -> {
            Map<?, ?> says = (Map<?, ?>) given.get("says");
            AgentConfig found;
            try {
                found = AgentConfig.fromJoinText((String) given.get("text"));
            } catch (SedgeException.ConfigError refused) {
                String said = refused.getMessage();
                assertTrue(said, says == null && said.startsWith("join text: ") && !said.contains("000102030405"));
                return;
            }
            Map<String, Object> read = new java.util.LinkedHashMap<>();
            read.put("device", found.device);
            read.put("fleet", found.fleet);
            read.put("url", found.url);
            read.put("secret", Hex.encode(found.secret()));
            if (found.caPem != null) {
                read.put("ca", found.caPem);
            }
            Map<Object, Object> others = new java.util.HashMap<>(says);
            Object trust = others.remove("trust");
            assertEquals(new PinnedKeys(trust == null ? Collections.emptyList() : strings(trust)).ids(), found.pinned.ids());
            assertEquals(others, read);
        });
    }

    @Test
    public void chains() {
        all(SPEC, "chains", given -> {
            List<byte[]> chain =
                    strings(given.get("chain")).stream().map(Hex::decode).collect(Collectors.toList());
            PinnedKeys pinned = new PinnedKeys(strings(given.get("pins")));
            PinnedKeys counting = pinned.after(pinned.learned(Collections.emptyMap(), chain));
            assertEquals(String.join(", ", strings(given.get("count"))), counting.ids());
        });
    }

    @Test
    public void joins() {
        all(SPEC, "joins", given -> {
            String device = (String) given.get("device");
            KeyPairGenerator generator = KeyPairGenerator.getInstance("EC");
            generator.initialize(new ECGenParameterSpec("secp256r1"));
            ECParameterSpec curve = ((ECPublicKey) generator.generateKeyPair().getPublic()).getParams();
            BigInteger number = new BigInteger((String) given.get("private"), 16);
            byte[] coded = KeyFactory.getInstance("EC").generatePrivate(new ECPrivateKeySpec(number, curve)).getEncoded();
            Agreement.Pair pair = new Agreement.Pair(bytes(given, "point"), coded);
            String fleet = (String) given.get("fleet");
            String token = (String) given.get("token");
            Agreement agreement = new Agreement(pair, bytes(given, "coordinator"), fleet, token);
            assertEquals(given.get("of"), Hex.encode(pair.name()));
            assertEquals(given.get("secret"), Hex.encode(agreement.secret));
            assertEquals(given.get("asks"), Hex.encode(agreement.asks(device)));
            assertEquals(given.get("answers"), Hex.encode(agreement.answers(device)));
            ECPrivateKey certificates = (ECPrivateKey) Agreement.certificateKey(agreement.secret);
            assertEquals(new BigInteger((String) given.get("certificate"), 16), certificates.getS());
            byte[] wrong = bytes(given, "coordinator");
            wrong[64] ^= 1;
            assertThrows(FrameError.class, () -> new Agreement(pair, wrong, fleet, token));
            // Two sides that generate their own keys derive secrets of the same length.
            Agreement.Pair one = Agreement.Pair.make();
            Agreement.Pair other = Agreement.Pair.make();
            assertEquals(65, one.point.length);
            assertEquals(new Agreement(one, other.point, fleet, token).secret.length, 32);
        });
    }

    @Test
    public void uploads() {
        all(SPEC, "uploads", given -> {
            Manifest manifest = Manifest.describe(new byte[integer(given, "size")], integer(given, "chunk_bytes"));
            Upload upload = new Upload(manifest, new Random(0));
            double now = 0;
            for (Object one : (List<?>) given.get("events")) {
                Map<?, ?> event = (Map<?, ?>) one;
                switch ((String) event.get("event")) {
                    case "connected":
                        upload.connected(now);
                        break;
                    case "disconnected":
                        upload.disconnected();
                        break;
                    case "have":
                        upload.receive((Long) event.get("number"), bitmap(event.get("held"), manifest.count),
                                integer(event, "credit"), now);
                        break;
                    case "busy":
                        upload.busy(5, now);
                        break;
                    case "woken":
                    case "woken soon":
                        now += event.get("event").equals("woken") ? 2 : 0.5;
                        upload.woken(now);
                        break;
                    default:
                        now = Double.isNaN(upload.timer()) ? now : upload.timer();
                }
                List<Object> sent = new ArrayList<>();
                for (int what : upload.poll(now)) {
                    Map<String, Object> offer = new java.util.LinkedHashMap<>();
                    offer.put("offer", upload.number());
                    offer.put("data", upload.inline());
                    sent.add(what == Upload.OFFER ? offer : (Object) (long) what);
                }
                assertEquals(event.get("sends"), sent);
            }
        });
    }

    @Test
    public void halvings() {
        all(SPEC, "halvings", given -> {
            byte[] blob = new byte[integer(given, "size")];
            Upload upload = offered(blob, 16384);
            List<Object> sizes = new ArrayList<>();
            for (Object what : (List<?>) given.get("connections")) {
                upload = afterConnection(upload, blob, (String) what);
                sizes.add((long) upload.manifest.chunkBytes);
            }
            assertEquals(given.get("chunk_bytes"), sizes);
        });
    }

    private static Upload offered(byte[] blob, int chunkBytes) {
        Upload upload = new Upload(Manifest.describe(blob, chunkBytes), new Random(0));
        upload.connected(0);
        return upload;
    }

    /** Returns what is offered after a connection on which this happened. */
    private static Upload afterConnection(Upload upload, byte[] blob, String what) throws RemoteError {
        byte[] nothing = new byte[(upload.manifest.count + 7) / 8];
        byte[] held = nothing.clone();
        held[0] |= what.contains("arrived") ? 1 : 0;
        upload.poll(0);
        if (!what.equals("offered")) {
            upload.receive(upload.number(), nothing, 1, 0);
            upload.poll(0);
        }
        if (what.contains("arrived") || what.equals("heard")) {
            upload.receive(0, held, 2, 0);
            upload.poll(0);
        }
        for (int lost = 1; lost < (" " + what + " ").split("lost").length; lost++) {
            upload.poll(100 * (lost - 1));
            upload.poll(100 * lost);
            upload.receive(upload.number(), held, 1, 100 * lost);
            if (upload.wantsSmallerChunks()) {
                return offered(blob, upload.manifest.chunkBytes / 2);
            }
        }
        upload.disconnected();
        upload.connected(0);
        return upload.wantsSmallerChunks() ? offered(blob, upload.manifest.chunkBytes / 2) : upload;
    }

    /** Draws the highest of all numbers. */
    private static final class Highest extends Random {
        private static final long serialVersionUID = 1;

        @Override
        public double nextDouble() {
            return 1;
        }
    }

    @Test
    public void backoffs() {
        all(SPEC, "backoffs", given -> {
            boolean downloads = given.get("of").equals("GET");
            Manifest manifest = Manifest.describe(new byte[40_000], 4096);
            Upload upload = new Upload(manifest, new Highest());
            Fetch fetch = new Fetch(manifest, new BitSet(), new Highest());
            double now = 0;
            List<Double> longest = new ArrayList<>();
            for (String event : strings(given.get("events"))) {
                if (event.equals("new")) {
                    upload.receive(0, bitmap(Collections.singletonList(0L), manifest.count), 1, now);
                    fetch.chunk(0, new byte[4096], now);
                    continue;
                }
                if (event.equals("connected")) {
                    upload.disconnected();
                    upload.connected(now);
                    fetch.disconnected();
                    fetch.connected(now);
                } else if (event.equals("woken")) {
                    now += 2;
                    upload.woken(now);
                    fetch.woken(now);
                }
                now = downloads ? fetch.timer() : upload.timer();
                upload.poll(now);
                fetch.poll(now);
                longest.add((downloads ? fetch.timer() : upload.timer()) - now);
            }
            List<?> wanted = (List<?>) given.get("longest");
            assertEquals(wanted.size(), longest.size());
            for (int i = 0; i < longest.size(); i++) {
                assertEquals(((Number) wanted.get(i)).doubleValue(), longest.get(i), 1e-9);
            }
        });
    }

    private static byte[] bitmap(Object held, int count) {
        BitSet bits = new BitSet();
        for (int i : ints(held)) {
            bits.set(i);
        }
        return Manifest.toBitmap(bits, count);
    }

    @Test
    public void waits() {
        all(SPEC, "waits", given -> {
            Reconnect reconnect = new Reconnect();
            for (Object one : (List<?>) given.get("ends")) {
                Map<?, ?> end = (Map<?, ?>) one;
                Reconnect.Ended ended = Reconnect.Ended.valueOf(((String) end.get("ended")).toUpperCase(Locale.ROOT));
                double longest = reconnect.longest(ended, ((Number) end.get("at")).doubleValue(),
                        (Long) given.get("devices"));
                assertEquals(((Number) end.get("longest")).doubleValue(), longest, 1e-9);
            }
        });
    }

    @Test
    public void downloads() {
        byte[] blob = new byte[256 * 56];
        for (int i = 0; i < blob.length; i++) {
            blob[i] = (byte) i;
        }
        Manifest manifest = Manifest.describe(blob, 4096);
        Map<Object, byte[]> wrong = new HashMap<>();
        wrong.put("beyond", Arrays.copyOf(blob, 4096));
        wrong.put("short", Arrays.copyOf(blob, 4095));
        wrong.put("changed", Arrays.copyOf(blob, 4096));
        wrong.get("changed")[0] ^= 1;
        all(SPEC, "downloads", given -> {
            BitSet held = Manifest.fromBitmap(bitmap(given.get("held"), manifest.count), manifest.count);
            Fetch fetch = new Fetch(manifest, held, new Random(0));
            double now = 0;
            for (Object one : (List<?>) given.get("events")) {
                Map<?, ?> event = (Map<?, ?>) one;
                if (event.get("event") instanceof Long) {
                    int index = integer(event, "event");
                    int from = manifest.offset(index);
                    fetch.chunk(index, Arrays.copyOfRange(blob, from, from + manifest.length(index)), now);
                } else if (wrong.containsKey(event.get("event"))) {
                    int index = event.get("event").equals("beyond") ? manifest.count : 0;
                    double at = now;
                    assertThrows(FrameError.class, () -> fetch.chunk(index, wrong.get(event.get("event")), at));
                } else if (event.get("event").equals("connected")) {
                    fetch.connected(now);
                } else if (event.get("event").equals("disconnected")) {
                    fetch.disconnected();
                } else if (((String) event.get("event")).startsWith("woken")) {
                    now += event.get("event").equals("woken") ? 2 : 0.5;
                    fetch.woken(now);
                } else {
                    now = Double.isNaN(fetch.timer()) ? now : fetch.timer();
                }
                BitSet asked = fetch.poll(now);
                assertEquals(Arrays.toString(ints(event.get("gets"))),
                        asked == null ? "null" : Arrays.toString(asked.stream().toArray()));
            }
        });
    }
}
