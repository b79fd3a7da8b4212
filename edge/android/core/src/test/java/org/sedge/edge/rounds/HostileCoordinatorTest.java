package org.sedge.edge.rounds;

import org.sedge.edge.AgentListener;
import org.sedge.edge.Limits;
import org.sedge.edge.jobs.Job;
import org.sedge.edge.wire.DeviceKeys;
import org.sedge.edge.wire.Frame;
import org.sedge.edge.wire.Hex;
import org.sedge.edge.wire.Json;
import org.sedge.edge.wire.Kind;
import org.sedge.edge.wire.Manifest;
import org.sedge.edge.wire.Messages.Decline;
import org.sedge.edge.wire.Messages.Hello;
import org.sedge.edge.wire.Messages.Order;
import org.sedge.edge.wire.Messages.UpdateSelection;
import org.sedge.edge.wire.Messages.Welcome;
import org.sedge.edge.wire.Messages.Work;
import org.sedge.edge.wire.Metric;
import org.sedge.edge.wire.Schema;
import org.sedge.edge.wire.Topics;

import static org.junit.Assert.assertArrayEquals;
import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertTrue;

import org.junit.Before;
import org.junit.Test;

import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.logging.Level;

/** Whatever a coordinator with the right key says, the device goes on. */
public class HostileCoordinatorTest {
    private static final DeviceKeys KEYS = new DeviceKeys(new byte[32]);
    private static final String DOWN = Topics.down("test", "pi-1");

    private final MemoryDisk disk = new MemoryDisk();
    private final List<Frame> sent = new ArrayList<>();
    private final Shell shell = new Shell();
    private AgentCore core;
    private Limits limits;
    private String firstWaits;
    private long seq;
    private byte[] nonce;

    private final class Shell implements Effects, AgentListener {
        @Override
        public void send(String topic, byte[] payload) {
            try {
                sent.add(Frame.open(payload, topic, KEYS.up, Frame.VERSIONS));
            } catch (org.sedge.edge.SedgeException error) {
                throw new AssertionError(error);
            }
        }

        @Override
        public void subscribe(String topic) { }

        @Override
        public void unsubscribe(String topic) { }

        @Override
        public void start(Job job) { }

        @Override
        public void note(Level level, String text) { }

        @Override
        public void joined(String fleet, String device) { }

        @Override
        public void disconnected(String reason) { }

        @Override
        public void trouble(String text) { }

        @Override
        public void training(String run, int round) { }

        @Override
        public void finished(String run, int round, Metric metric, double before, double after, long up, long down) { }

        @Override
        public void declined(String run, int round, String reason) { }
    }

    private void begin(Random random) throws Exception {
        Hello hello = Hello.SCHEMA.empty().with(Hello.NONCE, new byte[16]).with(Hello.VERSION, "test");
        core = new AgentCore("test", "pi-1", KEYS, hello, disk, disk, random, 0, limits, shell, shell);
    }

    @Before
    public void welcomed() throws Exception {
        begin(new Random(1));
        core.will();
        core.connected(0, 400_000);
        firstWaits = ((Hello) sent.get(0).message()).waits;
        nonce = ((Hello) sent.get(0).message()).nonce;
        say(Kind.WELCOME, Welcome.SCHEMA.empty().with(Welcome.NONCE, nonce).with(Welcome.VERSION, "evil")
                .with(Welcome.VERSIONS, Frame.VERSIONS).encode());
        assertTrue(core.welcomed());
        sent.clear();
    }

    private void say(Kind kind, byte[] body) {
        core.receive(DOWN, new Frame(kind, body, 1, ++seq, null, 0).seal(DOWN, KEYS.down, 2), 1);
    }

    private static Order order() {
        Manifest manifest = Manifest.describe(new byte[9000], 4096);
        return Order.SCHEMA.empty().with(Order.RUN, "run").with(Order.ROUND, 1L).with(Order.TASK, "train")
                .with(Order.BUNDLE, manifest).with(Order.MODEL, manifest).with(Order.MODEL_HASH, new byte[32]);
    }

    private void limited(Limits some) throws Exception {
        limits = some;
        welcomed();
    }

    @Test
    public void ordersAtOneMomentCostFewCommits() throws Exception {
        limited(Limits.DEFAULT);
        int before = disk.commits;
        for (long round = 1; round <= 300; round++) {
            say(Kind.ORDER, order().with(Order.ROUND, round).encode());
        }
        assertEquals(32, disk.commits - before);
    }

    @Test
    public void ordersBeyondAnHoursWorthAreDeclinedByName() throws Exception {
        limited(new Limits(2, 10, 1, 1));
        say(Kind.ORDER, order().encode());
        say(Kind.ORDER, order().with(Order.ROUND, 2L).encode());
        sent.clear();
        say(Kind.ORDER, order().with(Order.ROUND, 3L).encode());
        Decline decline = (Decline) sent.get(0).message();
        assertEquals("TooManyOrders", decline.reason);
        assertEquals("the limit of orders an hour: more than 2 orders in an hour, expected fewer, or a higher limit",
                decline.detail);
    }

    @Test
    public void theDaysBytesCloseTheGateAlsoAfterAStart() throws Exception {
        limited(new Limits(100, 0.006, 1, 1));
        byte[] bundle = SimulationTest.bundle();
        Manifest other = Manifest.describe(new byte[6000], 4096);
        Order order = order().with(Order.BUNDLE, Manifest.describe(bundle, 4096)).with(Order.MODEL, other);
        say(Kind.ORDER, order.encode());
        chunks(new byte[6000], 2);
        chunks(bundle, 2);
        core.poll(3);
        assertTrue(lastHello().waits.startsWith("the limit of megabytes a day: no more downloads for"));
        say(Kind.ORDER, order.with(Order.RUN, "other").encode());
        sent.clear();
        welcomed(); // a new start, by the same clock
        assertTrue(firstWaits.startsWith("the limit of megabytes a day"));
        core.poll(4 + 86400);
        assertEquals("", lastHello().waits);
    }

    @Test
    public void aModelThatItsLayoutDoesNotAllowIsDeclinedBeforeAByteOfItIsFetched() throws Exception {
        byte[] bundle = SimulationTest.bundle();
        Manifest huge = Manifest.describe(new byte[1 << 25], 1 << 18);
        Order order = order().with(Order.BUNDLE, Manifest.describe(bundle, 4096)).with(Order.MODEL, huge);
        say(Kind.ORDER, order.encode());
        assertEquals("the bundle comes first", 1, sent.size());
        assertArrayEquals(order.bundle.transfer, sent.get(0).transfer);
        sent.clear();
        chunks(bundle, 2);
        Decline decline = (Decline) sent.get(0).message();
        assertEquals("CodecError", decline.reason);
        assertTrue(decline.detail.startsWith("a model of 33554432 bytes, expected at most "));
        assertTrue(core.idle());
        byte[] before = disk.load();
        say(Kind.ORDER, order.with(Order.ROUND, 2L).encode());
        assertEquals("CodecError", ((Decline) sent.get(1).message()).reason);
        assertEquals("neither is asked for", 2, sent.size());
        assertArrayEquals("nor committed", before, disk.load());
    }

    private void chunks(byte[] blob, double now) {
        Manifest manifest = Manifest.describe(blob, 4096);
        String topic = Topics.blob("test", manifest.transfer);
        for (int i = 0; i < manifest.count; i++) {
            byte[] chunk = Arrays.copyOfRange(blob, i * 4096, i * 4096 + manifest.length(i));
            core.receive(topic, new Frame(Kind.CHUNK, chunk, 1, 0, manifest.transfer, i).seal(topic, null, 1), now);
        }
    }

    @Test
    public void anOrderWithAnExtensionThatWasNotAnnouncedIsDeclinedAndLeavesTheOneThatIsKept() throws Exception {
        say(Kind.ORDER, order().encode());
        Work work = Work.SCHEMA.empty().with(Work.SELECT, UpdateSelection.SCHEMA.empty());
        byte[] before = disk.load();
        sent.clear();
        say(Kind.ORDER, order().with(Order.ROUND, 2L).with(Order.WORK, work).encode());
        assertEquals(Kind.DECLINE, sent.get(0).kind);
        Decline decline = (Decline) sent.get(0).message();
        assertEquals("BodyError", decline.reason);
        assertEquals(2L, decline.round);
        assertEquals("ORDER: run run, round 2: needs select, which this device has not announced",
                decline.detail);
        assertArrayEquals(before, disk.load());
    }

    @Test
    public void aForgedStartCountEndsWithTheNextConnection() {
        core.receive(DOWN, new Frame(Kind.CANCEL, new byte[0], 0xfffffff0L, 1, null, 0).seal(DOWN, KEYS.down, 2), 1);
        say(Kind.ORDER, order().encode());
        assertTrue("older than what was forged", core.idle());
        core.disconnected();
        core.will();
        sent.clear();
        core.connected(2, 400_000);
        try {
            nonce = ((Hello) sent.get(0).message()).nonce;
        } catch (org.sedge.edge.SedgeException error) {
            throw new AssertionError(error);
        }
        say(Kind.WELCOME, Welcome.SCHEMA.empty().with(Welcome.NONCE, nonce).with(Welcome.VERSION, "v")
                .with(Welcome.VERSIONS, Frame.VERSIONS).encode());
        say(Kind.ORDER, order().encode());
        assertTrue(!core.idle());
    }

    @Test
    public void aDeviceWithoutRoomSaysSoUntilItHasSome() throws Exception {
        disk.full = true;
        byte[] blob = SimulationTest.bundle();
        Manifest manifest = Manifest.describe(blob, 4096);
        say(Kind.ORDER, order().with(Order.BUNDLE, manifest).with(Order.MODEL, manifest).encode());
        core.poll(2);
        assertEquals("disk full", lastHello().waits);
        disk.full = false;
        core.poll(40);
        chunks(blob, 41);
        core.poll(42);
        assertEquals("", lastHello().waits);
    }

    @Test
    public void aReadOnlyDiskIsNamedAtOnceAndTheDeviceComesBack() throws Exception {
        disk.readOnly = true;
        say(Kind.ORDER, order().encode());
        assertEquals("Read-only file system", lastHello().waits);
        byte[] welcome = Welcome.SCHEMA.empty().with(Welcome.NONCE, nonce).with(Welcome.VERSION, "v")
                .with(Welcome.VERSIONS, Frame.VERSIONS).encode();
        // Of a coordinator that has restarted meanwhile.
        core.receive(DOWN, new Frame(Kind.WELCOME, welcome, 2, 1, null, 0).seal(DOWN, KEYS.down, 2), 1);
        assertTrue(core.welcomed());
        sent.clear();
        for (int now = 30; now < 200; now++) {
            core.poll(now);
        }
        assertTrue("nothing has changed, and nothing was said", sent.isEmpty() && core.idle());
        disk.readOnly = false;
        core.poll(240);
        assertEquals("", lastHello().waits);
        core.receive(DOWN, new Frame(Kind.ORDER, order().encode(), 2, 2, null, 0).seal(DOWN, KEYS.down, 2), 241);
        assertTrue(!core.idle());
    }

    @Test
    public void hintsAreAnsweredSoonAndNotOften() throws Exception {
        byte[] welcome = Welcome.SCHEMA.empty().with(Welcome.NONCE, nonce).with(Welcome.VERSION, "v")
                .with(Welcome.VERSIONS, Frame.VERSIONS).encode();
        int hellos = 0;
        for (int now = 2; now < 1000; now++) {
            core.receive(Topics.hint("test", "pi-1"), new byte[0], now);
            core.poll(now);
            if (!sent.isEmpty()) {
                assertEquals(Kind.HELLO, sent.get(0).kind);
                hellos++;
                say(Kind.WELCOME, welcome);
                sent.clear();
            }
            assertTrue(now + ": " + hellos, hellos <= 3 + 3 * (now / 180) && hellos >= 1 + 3 * (now / 190) - 1);
        }
    }

    private Hello lastHello() throws Exception {
        Hello last = null;
        for (Frame frame : sent) {
            last = frame.kind == Kind.HELLO ? (Hello) frame.message() : last;
        }
        return last;
    }

    /** The shared vectors' frames to devices, with some bytes changed, under good MACs and bad ones. */
    @Test
    public void noBytesEndTheDevice() throws Exception {
        byte[] text = Files.readAllBytes(Paths.get(System.getProperty("sedge.vectors"), "frames.json"));
        Map<?, ?> vectors = (Map<?, ?>) Json.parse(new String(text, StandardCharsets.UTF_8));
        List<Object> cases = new ArrayList<>((List<?>) vectors.get("frames"));
        cases.addAll((List<?>) vectors.get("refused_bodies"));
        Random random = new Random(3);
        for (int i = 0; i < 5_000; i++) {
            Map<?, ?> chosen = (Map<?, ?>) cases.get(random.nextInt(cases.size()));
            byte[] body = Hex.decode((String) chosen.get("body"));
            for (int changes = random.nextInt(4); changes > 0 && body.length > 0; changes--) {
                body[random.nextInt(body.length)] = (byte) random.nextInt(256);
            }
            Kind kind = Kind.of(((Long) chosen.get("kind")).intValue());
            Schema<?> schema = kind.schema;
            assertTrue(schema != null || kind == Kind.CHUNK);
            byte[] sealed = new Frame(kind, body, 1 + random.nextInt(3), ++seq, null, random.nextInt(5))
                    .seal(DOWN, KEYS.down, 2);
            if (random.nextInt(4) == 0) {
                sealed[random.nextInt(sealed.length)] ^= (byte) (1 << random.nextInt(8));
            }
            core.receive(random.nextInt(9) == 0 ? Topics.blob("test", new byte[16]) : DOWN, sealed, i);
            core.poll(i);
        }
        begin(new Random(1)); // and what it has kept is read again
    }
}
