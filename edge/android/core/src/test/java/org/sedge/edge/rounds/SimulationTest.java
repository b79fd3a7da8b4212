package org.sedge.edge.rounds;

import org.sedge.edge.AgentListener;
import org.sedge.edge.Examples;
import org.sedge.edge.Rows;
import org.sedge.edge.SedgeException;
import org.sedge.edge.SedgeException.StorageError;
import org.sedge.edge.backends.ClassMeans;
import org.sedge.edge.backends.Programs;
import org.sedge.edge.backends.Trials;
import org.sedge.edge.backends.Trusting;
import org.sedge.edge.jobs.Job;
import org.sedge.edge.jobs.Outcome;
import org.sedge.edge.rounds.MemoryDisk.Killed;
import org.sedge.edge.training.JobRunner;
import org.sedge.edge.training.JobStopped;
import org.sedge.edge.wire.DeviceKeys;
import org.sedge.edge.wire.Digests;
import org.sedge.edge.wire.Hex;
import org.sedge.edge.wire.Messages.Hello;
import org.sedge.edge.wire.Metric;
import org.sedge.edge.wire.MsgPack;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertTrue;

import org.junit.Rule;
import org.junit.Test;
import org.junit.rules.TemporaryFolder;

import java.io.ByteArrayOutputStream;
import java.nio.charset.StandardCharsets;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.PriorityQueue;
import java.util.Random;
import java.util.Set;
import java.util.logging.Level;
import java.util.zip.DeflaterOutputStream;

/** A device on a virtual clock, killed, cut off, refused and stopped: no update is lost, none comes twice. */
public class SimulationTest {
    private static final int SIZE = 128;
    private static final int CLASSES = 10;
    private static final DeviceKeys KEYS = new DeviceKeys(new byte[32]);
    /** Chunks have 4096 bytes then, so that an update has several. */
    private static final int SMALL_PACKETS = 4096 + 4096 + 64;

    @Rule
    public final TemporaryFolder folder = new TemporaryFolder();

    static byte[] bundle() throws Exception {
        Map<String, Object> files = new LinkedHashMap<>();
        StringBuilder programs = new StringBuilder();
        for (String name : new String[] {"gradient", "evaluate"}) {
            byte[] file = (name.equals("evaluate") ? "metric_sum" : name).getBytes(StandardCharsets.US_ASCII);
            files.put(name, file);
            programs.append(programs.length() > 0 ? "," : "").append("{\"name\":\"").append(name)
                    .append("\",\"backend\":\"means\",\"file\":\"").append(name).append("\",\"sha256\":\"")
                    .append(Hex.encode(Digests.sha256(file))).append("\"}");
        }
        int half = CLASSES / 2 * SIZE;
        String manifest = "{\"format\":1,\"name\":\"means\",\"layout\":{\"tensors\":["
                + "{\"name\":\"first\",\"shape\":[" + half + "],\"offset\":0},"
                + "{\"name\":\"second\",\"shape\":[" + half + "],\"offset\":" + half + "}]},\"batch_size\":8,"
                + "\"input\":{\"dtype\":\"float32\",\"shape\":[" + SIZE + "]},"
                + "\"target\":{\"dtype\":\"int64\",\"shape\":[]},\"num_classes\":" + CLASSES + ","
                + "\"uses_batch_statistics\":false,\"programs\":[" + programs + "],\"verification\":null}";
        Map<String, Object> packed = new LinkedHashMap<>();
        packed.put("manifest", manifest.getBytes(StandardCharsets.UTF_8));
        packed.put("files", files);
        ByteArrayOutputStream out = new ByteArrayOutputStream();
        try (DeflaterOutputStream deflater = new DeflaterOutputStream(out)) {
            deflater.write(MsgPack.pack(packed));
        }
        return out.toByteArray();
    }

    private static Examples examples(int count) throws SedgeException {
        Random random = new Random(count);
        float[] x = new float[count * SIZE];
        long[] y = new long[count];
        for (int i = 0; i < x.length; i++) {
            x[i] = random.nextInt(16);
        }
        for (int i = 0; i < count; i++) {
            y[i] = random.nextInt(CLASSES);
        }
        return new Examples(new Rows(x, SIZE), new Rows(y));
    }

    /** The world of one device: its disk, its link, its coordinator, and what happens to them. */
    private final class World implements Effects, AgentListener {
        final MemoryDisk disk = new MemoryDisk();
        final Random random;
        final boolean hostile;
        final PriorityQueue<Event> events = new PriorityQueue<>();
        final Set<String> subscribed = new HashSet<>();
        final Map<Integer, Integer> finished = new HashMap<>();
        final ScriptedCoordinator coordinator;
        final JobRunner runner;
        AgentCore core;
        Job job;
        double now;
        long order;
        int life; // counts starts, so that what belongs to an earlier one is dropped
        int connection;
        boolean up;
        int kills;
        int cuts;
        int stops;

        World(long seed, boolean hostile) throws Exception {
            random = new Random(seed);
            this.hostile = hostile;
            float[] theta = new float[SIZE * CLASSES];
            for (int i = 0; i < theta.length; i++) {
                theta[i] = i % 13;
            }
            coordinator = new ScriptedCoordinator(KEYS, bundle(), theta, this::toDevice);
            Trials trials = new Trials(folder.newFolder(), new Trusting(), disk);
            Programs programs =
                    new Programs(folder.newFolder(), Collections.singletonList(new ClassMeans("means")), trials);
            runner = new JobRunner(disk, programs, examples(20), examples(8));
            disk.fuse = 0;
            begin();
            disk.refusals = hostile ? random : null;
        }

        /** Something that happens at a time; those of one time in the order in which they were made. */
        private final class Event implements Comparable<Event> {
            final double at;
            final long number = order++;
            final Step step;

            Event(double at, Step step) {
                this.at = at;
                this.step = step;
            }

            @Override
            public int compareTo(Event other) {
                return at == other.at ? Long.compare(number, other.number) : Double.compare(at, other.at);
            }
        }

        private void after(double seconds, Step step) {
            events.add(new Event(now + seconds, step));
        }

        /** The process starts: with what is on its disk. */
        private void begin() throws Exception {
            life++;
            connection++;
            up = false;
            job = null;
            Hello hello = Hello.SCHEMA.empty().with(Hello.NONCE, new byte[16]).with(Hello.VERSION, "test");
            for (core = null; core == null;) {
                try {
                    core = new AgentCore("test", "pi-1", KEYS, hello, disk, disk, random, 0, null, this, this);
                } catch (StorageError refused) {
                    now += 60; // Android starts it again
                }
            }
            dial();
        }

        private void dial() {
            int mine = ++connection;
            core.will();
            after(0.5, () -> {
                if (mine == connection) {
                    up = true;
                    subscribed.clear();
                    core.connected(now, SMALL_PACKETS);
                }
            });
        }

        private void cut() {
            cuts++;
            up = false;
            core.disconnected();
            dial();
        }

        private void kill() throws Exception {
            kills++;
            if (random.nextInt(3) == 0) {
                disk.cutPower(random);
            }
            begin();
        }

        /** In how many starts the order was begun and not ended. */
        private long startsOfJob() {
            long most = 0;
            for (State.Attempt attempt : State.SCHEMA.decode(disk.load()).attempts.values()) {
                most = Math.max(most, attempt.get(State.Attempt.STARTS));
            }
            return most;
        }

        private boolean lost() {
            return hostile && random.nextInt(50) == 0;
        }

        private void toDevice(String topic, byte[] payload) {
            int mine = connection;
            boolean heard = topic.equals(core.downTopic()) || subscribed.contains(topic);
            for (int copies = lost() ? 0 : lost() ? 2 : 1; up && heard && copies > 0; copies--) {
                after(0.05, () -> {
                    if (mine == connection) {
                        core.receive(topic, payload, now);
                    }
                });
            }
        }

        @Override
        public void send(String topic, byte[] payload) {
            disk.tick();
            int mine = connection;
            for (int copies = lost() ? 0 : lost() ? 2 : 1; up && copies > 0; copies--) {
                after(0.05, () -> {
                    if (mine == connection || !hostile || random.nextBoolean()) { // a cut loses what is on its way
                        coordinator.receive(payload);
                    }
                });
            }
        }

        @Override
        public void subscribe(String topic) {
            subscribed.add(topic);
        }

        @Override
        public void unsubscribe(String topic) {
            subscribed.remove(topic);
        }

        @Override
        public void start(Job started) {
            job = started;
            int mine = life;
            after(3, () -> {
                if (mine == life && job == started) {
                    work(started);
                }
            });
        }

        private void work(Job started) throws Exception {
            int[] steps = {hostile && random.nextInt(3) == 0 ? random.nextInt(8) : -1};
            try {
                Outcome outcome = runner.run(started, () -> steps[0]-- == 0);
                job = null;
                core.finished(outcome, now);
            } catch (StorageError refused) {
                job = null;
                core.failed(refused, now);
            } catch (JobStopped stop) { // the process ends in order
                stops++;
                core.interrupted(stop.checkpoint);
                begin();
            }
        }

        /** Plays until so many rounds are closed. */
        void play(int rounds) throws Exception {
            double repeatAt = now + 60;
            double faultAt = hostile ? now + 1 : Double.POSITIVE_INFINITY;
            while (coordinator.round() <= rounds) {
                double due = Double.isNaN(core.timer()) ? Double.POSITIVE_INFINITY : core.timer();
                double next = Math.min(Math.min(due, repeatAt), faultAt);
                Event event = events.isEmpty() || events.peek().at > next ? null : events.poll();
                now = Math.max(now, event == null ? next : event.at);
                assertTrue("round " + coordinator.round() + " is stuck", now < 1e7);
                // Three starts that do not end an order are declined, as they should be.
                disk.fuse = startsOfJob() >= 2 ? 0 : disk.fuse;
                try {
                    if (event != null) {
                        event.step.go();
                    } else if (now >= repeatAt) {
                        coordinator.repeat();
                        repeatAt = now + 60;
                    } else if (now >= faultAt) {
                        if (random.nextBoolean() && up) {
                            cut();
                        } else {
                            disk.fuse = 1 + random.nextInt(30);
                        }
                        faultAt = now + 2 * random.nextDouble();
                    } else {
                        core.poll(now);
                    }
                } catch (Killed killed) {
                    kill();
                }
            }
        }

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
        public void finished(String run, int round, Metric metric, double before, double after, long bytesUp,
                long bytesDown) {
            finished.merge(round, 1, Integer::sum);
        }

        @Override
        public void declined(String run, int round, String reason) {
            throw new AssertionError("round " + round + ": " + reason);
        }
    }

    private interface Step {
        void go() throws Exception;
    }

    @Test
    public void aThousandKillsAndCutsChangeNoUpdate() throws Exception {
        World hostile = new World(Long.getLong("sedge.seed", 2), true);
        int rounds = 0;
        while (hostile.kills + hostile.cuts < 1000) {
            rounds += 10;
            hostile.play(rounds);
        }
        System.out.println(hostile.kills + " kills, " + hostile.cuts + " cuts and " + hostile.stops + " stops in "
                + rounds + " rounds, " + Math.round(hostile.now) + " s");
        World calm = new World(1, false);
        calm.play(rounds);
        assertEquals(calm.coordinator.payloads, hostile.coordinator.payloads);
        assertEquals(rounds, hostile.coordinator.payloads.size());
        // What a person is told may be lost with its receipt in a kill, and is never said twice.
        assertTrue(hostile.finished.values().stream().allMatch(times -> times == 1));
    }
}
