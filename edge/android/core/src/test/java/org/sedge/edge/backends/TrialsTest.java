package org.sedge.edge.backends;

import static org.junit.Assert.assertArrayEquals;
import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertThrows;
import static org.junit.Assert.assertTrue;

import org.junit.Before;
import org.junit.Rule;
import org.junit.Test;
import org.junit.rules.TemporaryFolder;
import org.sedge.edge.SedgeException;
import org.sedge.edge.SedgeException.ConfigError;
import org.sedge.edge.host.BlobFolder;
import org.sedge.edge.host.Disk;
import org.sedge.edge.host.Journal;
import org.sedge.edge.jobs.Job;
import org.sedge.edge.jobs.Kept;
import org.sedge.edge.training.JobStopped;
import org.sedge.edge.wire.Bundle;
import org.sedge.edge.wire.Digests;
import org.sedge.edge.wire.Hex;
import org.sedge.edge.wire.Manifest;
import org.sedge.edge.wire.Messages.Order;
import org.sedge.edge.wire.MsgPack;

import java.io.ByteArrayOutputStream;
import java.io.File;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.zip.DeflaterOutputStream;

/** Tests which verdict follows from the outcome of a trial, how long the verdict holds, and what a trial runs. */
public class TrialsTest {
    @Rule
    public final TemporaryFolder folder = new TemporaryFolder();

    private final List<String> asked = Collections.synchronizedList(new ArrayList<>());
    private final CountDownLatch closed = new CountDownLatch(1);
    private String host = "phone";
    private int begun;
    private Ending ending = (program, sample) -> true;
    private File state;
    private BlobFolder blobs;

    /** Decides the outcome of each step of a trial. */
    private interface Ending {
        boolean of(String program, int sample) throws IOException, Sandbox.Crash;
    }

    @Before
    public void open() throws Exception {
        state = folder.getRoot();
        blobs = new BlobFolder(state, 1);
    }

    /** A sandbox whose trials end as the test's {@link #ending} says. */
    private final class Scripted implements Sandbox {
        @Override
        public String host() {
            return host;
        }

        @Override
        public Trial begin(File folder, Backend backend) {
            begun++;
            return new Trial() {
                @Override
                public boolean run(String program, int sample) throws IOException, Crash {
                    asked.add(program + " " + sample);
                    return ending.of(program, sample);
                }

                @Override
                public void close() {
                    closed.countDown();
                }
            };
        }
    }

    /** A runtime that loads any file and records the inputs of every run. */
    public static class Recording implements Backend {
        static final List<Tensor[]> RUNS = new ArrayList<>();
        private final String name;

        public Recording() {
            this("first");
        }

        Recording(String name) {
            this.name = name;
        }

        @Override
        public String name() {
            return name;
        }

        @Override
        public Program load(File file, String method) throws BackendException {
            if (file.length() == 0) {
                throw new BackendException("empty");
            }
            return new Program() {
                @Override
                public Tensor[] run(Tensor... inputs) throws BackendException {
                    RUNS.add(inputs);
                    throw new BackendException("an error, not a crash");
                }

                @Override
                public void close() { }
            };
        }
    }

    /** Returns a packed bundle that has three programs for each backend, all of them plain text. */
    private static byte[] bundle(String content, String... backends) throws Exception {
        Map<String, Object> files = new LinkedHashMap<>();
        List<String> programs = new ArrayList<>();
        for (String backend : backends) {
            for (String name : Arrays.asList("gradient", "evaluate", "predict")) {
                byte[] data = content.isEmpty() ? new byte[0] : (content + backend + name).getBytes(StandardCharsets.UTF_8);
                files.put(backend + name, data);
                programs.add("{\"name\":\"" + name + "\",\"backend\":\"" + backend + "\",\"file\":\"" + backend + name
                        + "\",\"sha256\":\"" + Hex.encode(Digests.sha256(data)) + "\"}");
            }
        }
        String manifest = "{\"format\":1,\"name\":\"means\",\"layout\":{\"tensors\":[{\"name\":\"w\",\"shape\":[5],"
                + "\"offset\":0}]},\"batch_size\":4,\"input\":{\"dtype\":\"float32\",\"shape\":[3]},\"target\":{"
                + "\"dtype\":\"int64\",\"shape\":[]},\"num_classes\":2,\"uses_batch_statistics\":false,\"noise\":6,"
                + "\"programs\":[" + String.join(",", programs) + "],\"verification\":null}";
        return packed(manifest, files);
    }

    /** Returns a packed bundle with this manifest. */
    public static byte[] packed(String manifest, Map<String, Object> files) throws IOException {
        Map<String, Object> packed = new LinkedHashMap<>();
        packed.put("manifest", manifest.getBytes(StandardCharsets.UTF_8));
        packed.put("files", files);
        ByteArrayOutputStream out = new ByteArrayOutputStream();
        try (DeflaterOutputStream deflater = new DeflaterOutputStream(out)) {
            deflater.write(MsgPack.pack(packed));
        }
        return out.toByteArray();
    }

    private Trials trials() throws SedgeException {
        return new Trials(state, new Scripted(), blobs, 1000);
    }

    private Job job(byte[] packed) throws SedgeException {
        blobs.write(packed);
        return new Job(Order.SCHEMA.empty().with(Order.BUNDLE, Manifest.describe(packed, 4096)), Kept.SCHEMA.empty(),
                new byte[] {7}, 0);
    }

    /** Opens the bundle's programs in the same way as a job. Returns "", or why they could not be opened. */
    private String opened(Trials trials, byte[] packed, Backend... backends) throws Exception {
        try {
            File programs = new File(state, "programs");
            Disk.makeFolder(programs);
            new Programs(programs, Arrays.asList(backends), trials)
                    .open(Bundle.unpack(packed), job(packed), () -> false).close();
            return "";
        } catch (SedgeException error) {
            return error.reason() + ": " + error.getMessage();
        }
    }

    private String opened() throws Exception {
        return opened(trials(), bundle("x", "first"), new Recording());
    }

    private Map<String, String> file() throws SedgeException {
        byte[] saved = new Journal(new File(state, "trials")).load();
        return saved == null ? Collections.emptyMap() : Trials.VERDICTS.decode(saved).get(Trials.FOUND);
    }

    @Test
    public void aPassIsTriedOnceForAllStarts() throws Exception {
        assertEquals("", opened());
        assertEquals(Arrays.asList("gradient 0", "guided 0", "evaluate 0", "predict 0", "gradient 1", "guided 1",
                "evaluate 1", "predict 1", "gradient 2", "guided 2", "evaluate 2", "predict 2"), asked);
        assertEquals("", opened());
        assertEquals(1, begun);
        assertEquals(Collections.singletonList(""), new ArrayList<>(file().values()));
        assertEquals(0, new File(state, "trial").list().length);
    }

    @Test
    public void aCrashIsKept() throws Exception {
        ending = (program, sample) -> {
            if (program.equals("predict") && sample == 1) {
                throw new Sandbox.Crash("signal 11", true);
            }
            return true;
        };
        String fault = "a trial run of 'predict' ended with signal 11";
        for (int start = 0; start < 2; start++) {
            assertEquals("ConfigError: backend: found 'first', expected a working backend; first: " + fault, opened());
        }
        assertEquals(1, begun);
        assertEquals(Collections.singletonList(fault), new ArrayList<>(file().values()));
        assertEquals(0, closed.getCount());
    }

    @Test
    public void whatMayEndOtherwiseHoldsForThisStart() throws Exception {
        CountDownLatch never = new CountDownLatch(1);
        Map<String, Ending> endings = new LinkedHashMap<>();
        endings.put("a trial run of 'gradient' ended with the death of its process", (program, sample) -> {
            throw new Sandbox.Crash("the death of its process", false);
        });
        endings.put("a trial run could not begin: no memory", (program, sample) -> {
            throw new IOException("no memory");
        });
        endings.put("a trial run of 'gradient' did not end within 1 s", (program, sample) -> {
            try {
                never.await();
            } catch (InterruptedException error) {
                throw new IOException(error);
            }
            return true;
        });
        for (Map.Entry<String, Ending> one : endings.entrySet()) {
            ending = one.getValue();
            begun = 0;
            Trials trials = trials();
            for (int round = 0; round < 2; round++) {
                String said = opened(trials, bundle("x", "first"), new Recording());
                assertTrue(said, said.endsWith("; first: " + one.getKey()));
            }
            assertEquals(1, begun);
            assertTrue(file().isEmpty());
        }
        ending = (program, sample) -> true;
        assertEquals("", opened());
    }

    @Test
    public void aStopIsNoVerdictAndLosesNoCheckpoint() throws Exception {
        byte[] packed = bundle("x", "first");
        Job job = job(packed);
        CountDownLatch running = new CountDownLatch(1);
        ending = (program, sample) -> {
            running.countDown();
            try {
                closed.await();
            } catch (InterruptedException error) {
                throw new IOException(error);
            }
            throw new Sandbox.Crash("signal 9", false);
        };
        Trials trials = trials();
        Programs programs = new Programs(state, Collections.singletonList(new Recording()), trials);
        JobStopped stop = assertThrows(JobStopped.class, () -> programs.open(
                Bundle.unpack(packed), job, () -> running.getCount() == 0));
        assertArrayEquals(job.checkpoint, stop.checkpoint);
        long began = System.nanoTime();
        ending = (program, sample) -> {
            // the signal goes to all processes, and the trial's process ends first
            throw new Sandbox.Crash("signal 15", false);
        };
        assertThrows(JobStopped.class, () -> programs.open(
                Bundle.unpack(packed), job, () -> System.nanoTime() - began > 50_000_000));
        ending = (program, sample) -> true;
        assertEquals("", trials.fault(
                Bundle.unpack(packed), job.order.bundle.sha256, new Recording(), () -> false));
        assertEquals(3, begun);
    }

    @Test
    public void otherProgramsAndHostsAreTriedAnew() throws Exception {
        assertEquals("", opened());
        host = "updated phone";
        assertEquals("", opened());
        assertEquals("", opened(trials(), bundle("y", "first"), new Recording()));
        assertEquals(3, begun);
        Files.write(new File(state, "trials").toPath(), new byte[] {1, 2, 3});
        assertEquals("", opened());
        assertEquals(4, begun);
    }

    @Test
    public void theOldestVerdictsMakeRoom() throws Exception {
        for (int i = 0; i <= Trials.MAX_VERDICTS; i++) {
            host = "phone " + i;
            opened();
        }
        assertEquals(Trials.MAX_VERDICTS, file().size());
        assertEquals("", opened());
        assertEquals(Trials.MAX_VERDICTS + 1, begun);
        host = "phone 0";
        opened();
        assertEquals(Trials.MAX_VERDICTS + 2, begun);
    }

    @Test
    public void anotherBackendTrainsWhereOneCrashes() throws Exception {
        ending = (program, sample) -> {
            if (begun == 1) {
                throw new Sandbox.Crash("signal 4", true);
            }
            return true;
        };
        Backend[] both = {new Recording("first"), new Recording("second")};
        assertEquals("", opened(trials(), bundle("x", "first", "second"), both));
        assertEquals(2, begun);
    }

    @Test
    public void nothingIsKeptWhereNoProgramCouldBeLoaded() throws Exception {
        ending = (program, sample) -> false;
        assertEquals("CodecError: bundle 'means': program 'gradient' cannot be loaded: empty",
                opened(trials(), bundle("", "first"), new Recording()));
        assertTrue(file().isEmpty());
    }

    @Test
    public void aTrialRunsEveryProgramOnEverySample() throws Exception {
        Files.write(new File(state, Tryout.BUNDLE).toPath(), bundle("x", "first"));
        Tryout tryout = new Tryout(state, Recording.class.getName());
        Recording.RUNS.clear();
        for (int sample = 0; sample < Tryout.SAMPLES; sample++) {
            for (String name : Arrays.asList("gradient", "evaluate", "predict")) {
                assertTrue(tryout.run(name, sample));
            }
        }
        int[] counts = {5, 4, 2}; // theta, x, y, w, noise; then without noise; then theta and x
        for (int i = 0; i < 9; i++) {
            Tensor[] inputs = Recording.RUNS.get(i);
            assertEquals(counts[i % 3], inputs.length);
            assertArrayEquals(new long[] {4, 3}, inputs[1].shape());
            for (int tensor = 0; tensor < 2; tensor++) {
                float last = inputs[tensor].data().asFloatBuffer().get(inputs[tensor].data().remaining() / 4 - 1);
                assertEquals(i / 3, Float.isNaN(last) ? 2 : last == 0 ? 0 : 1);
            }
        }
    }

    @Test
    public void aTrialThatCannotLoadSaysSo() throws Exception {
        Files.write(new File(state, Tryout.BUNDLE).toPath(), bundle("", "first"));
        assertFalse(new Tryout(state, Recording.class.getName()).run("gradient", 0));
        String said = assertThrows(ConfigError.class, () -> new Tryout(state, Scripted.class.getName())).getMessage();
        assertTrue(said, said.endsWith("with a public constructor without arguments"));
    }
}
