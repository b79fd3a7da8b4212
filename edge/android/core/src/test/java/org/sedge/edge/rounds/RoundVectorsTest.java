package org.sedge.edge.rounds;

import org.sedge.edge.Examples;
import org.sedge.edge.Rows;
import org.sedge.edge.SedgeException;
import org.sedge.edge.backends.Line;
import org.sedge.edge.backends.Programs;
import org.sedge.edge.backends.Trials;
import org.sedge.edge.backends.TrialsTest;
import org.sedge.edge.backends.Trusting;
import org.sedge.edge.codec.Coding;
import org.sedge.edge.codec.Compression;
import org.sedge.edge.codec.SparseVector;
import org.sedge.edge.jobs.Job;
import org.sedge.edge.jobs.Kept;
import org.sedge.edge.jobs.Outcome;
import org.sedge.edge.jobs.Vectors;
import org.sedge.edge.training.JobRunner;
import org.sedge.edge.training.JobStopped;
import org.sedge.edge.wire.Digests;
import org.sedge.edge.wire.Hex;
import org.sedge.edge.wire.Json;
import org.sedge.edge.wire.Manifest;
import org.sedge.edge.wire.Messages.Codec;
import org.sedge.edge.wire.Messages.Metrics;
import org.sedge.edge.wire.Messages.Order;
import org.sedge.edge.wire.Messages.Step;
import org.sedge.edge.wire.Messages.Training;
import org.sedge.edge.wire.Messages.Work;
import org.sedge.edge.wire.Update;

import static org.junit.Assert.assertArrayEquals;
import static org.junit.Assert.assertEquals;

import org.junit.Rule;
import org.junit.Test;
import org.junit.rules.TemporaryFolder;

import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * Checks the test vectors in spec.json that are about orders: the blobs that an order needs, and whole rounds (T1 to
 * T11) with the state that the device keeps from order to order.
 */
public class RoundVectorsTest {
    @Rule
    public final TemporaryFolder folder = new TemporaryFolder();

    private RefusingDisk disk;
    private StateStore store;
    private JobRunner runner;

    /** Returns the cases of a group in spec.json. */
    private static List<?> cases(String group) throws Exception {
        byte[] text = Files.readAllBytes(Paths.get(System.getProperty("sedge.vectors"), "spec.json"));
        Map<?, ?> spec = (Map<?, ?>) Json.parse(new String(text, StandardCharsets.UTF_8));
        return (List<?>) spec.get(group);
    }

    /** Checks which blobs are fetched for an order. Leaves out cases with kept steps or an extension's masks. */
    @Test
    public void needs() throws Exception {
        for (Object one : cases("needs")) {
            Map<?, ?> given = (Map<?, ?>) one;
            List<?> extra = (List<?>) given.get("extra");
            if (!((List<?>) given.get("chain")).isEmpty() || extra.contains("patch_context")) {
                continue;
            }
            disk = new RefusingDisk(folder.newFolder());
            for (Object held : (List<?>) given.get("holds")) {
                disk.write(named(held));
            }
            List<Step> steps = new ArrayList<>();
            for (Object step : (List<?>) given.get("steps")) {
                steps.add(Step.SCHEMA.empty().with(Step.BASE_HASH, Digests.sha256(named(((List<?>) step).get(0))))
                        .with(Step.BLOB, manifest(((List<?>) step).get(1))));
            }
            Order order = Order.SCHEMA.empty().with(Order.BUNDLE, manifest("bundle"))
                    .with(Order.MODEL, manifest("model")).with(Order.MODEL_HASH, Digests.sha256(named("v3")))
                    .with(Order.STEPS, steps)
                    .with(Order.PATCH_BLOB, extra.contains("patch_blob") ? manifest("patch_blob") : null)
                    .with(Order.CORRECTION, extra.contains("correction") ? manifest("correction") : null);
            List<String> fetched = new ArrayList<>();
            for (Manifest missing : new Fetches("f", disk, null, null, null).missing(order)) {
                fetched.add(Hex.encode(missing.sha256));
            }
            List<String> wanted = new ArrayList<>();
            for (Object name : (List<?>) given.get("fetches")) {
                wanted.add(Hex.encode(Digests.sha256(named(name))));
            }
            assertEquals(String.valueOf(given.get("name")), wanted, fetched);
        }
    }

    private static byte[] named(Object name) {
        return ((String) name).getBytes(StandardCharsets.US_ASCII);
    }

    private static Manifest manifest(Object name) {
        return Manifest.describe(named(name), 4096);
    }

    @Test
    public void rounds() throws Exception {
        play("rounds");
    }

    @Test
    public void extendedRounds() throws Exception {
        assertEquals(9, play("extended_rounds"));
    }

    /** Replays the runs in a group that need no unsupported extension. Returns the number of runs replayed. */
    private int play(String group) throws Exception {
        int played = 0;
        for (Object one : cases(group)) {
            Map<?, ?> given = (Map<?, ?>) one;
            disk = new RefusingDisk(folder.newFolder());
            store = new StateStore(disk, disk);
            Trials trials = new Trials(folder.newFolder(), new Trusting(), disk);
            Programs programs = new Programs(folder.newFolder(), Collections.singletonList(new Line()), trials);
            runner = new JobRunner(disk, programs, examples(given.get("train")), examples(given.get("test")));
            boolean able = true;
            for (Object order : (List<?>) given.get("orders")) {
                able &= Abilities.lacking(order(given, (Map<?, ?>) order, 1)).isEmpty();
            }
            long round = 0;
            for (Object order : able ? (List<?>) given.get("orders") : Collections.emptyList()) {
                check(given, (Map<?, ?>) order, ++round);
            }
            played += able ? 1 : 0;
        }
        return played;
    }

    /** Runs a job that is stopped after every step and continued from its checkpoint. */
    private Outcome stepByStep(Order order, Kept kept) throws SedgeException {
        byte[] checkpoint = null;
        while (true) {
            int[] left = {1};
            try {
                return runner.run(new Job(order, kept, checkpoint, 0), () -> left[0]-- == 0);
            } catch (JobStopped stop) {
                checkpoint = stop.checkpoint;
            }
        }
    }

    private void check(Map<?, ?> given, Map<?, ?> wanted, long round) throws Exception {
        String where = given.get("name") + ", order " + round;
        Order order = order(given, wanted, round);
        store.accept(order, null);
        Outcome outcome;
        try {
            Kept kept = store.keptFor(order);
            outcome = stepByStep(order, kept == null ? Kept.SCHEMA.empty() : kept);
        } catch (SedgeException error) {
            assertEquals(where, wanted.get("declined"), error.reason());
            store.drop("line");
            return;
        }
        store.finish(order, outcome);
        Update update = Update.decode(disk.read(outcome.update));
        assertEquals(where, wanted.get("payload"), Hex.encode(update.payload));
        assertEquals(where, wanted.get("before"), metrics(outcome.report.before));
        assertEquals(where, wanted.get("after"), metrics(outcome.report.after));
        assertEquals(where, wanted.get("train_loss"), outcome.report.trainLoss);
        assertEquals(where, wanted.get("steps"), outcome.report.steps);
        assertEquals(where, wanted.get("num_examples"), outcome.report.numExamples);
        byte[] owed = store.state().runs.get("line").residual;
        assertArrayEquals(where, wanted.get("owed") == null ? null : Hex.decode((String) wanted.get("owed")),
                owed == null ? null : disk.read(owed));
        if (wanted.containsKey("predicts_with")) {
            byte[] model = store.state().runs.get("line").model;
            assertEquals(where, wanted.get("predicts_with"), Hex.encode(disk.read(model)));
        }
    }

    private static List<Object> metrics(Metrics found) {
        return Arrays.asList(found.loss, found.metric, found.numExamples);
    }

    private Order order(Map<?, ?> given, Map<?, ?> wanted, long round) throws Exception {
        byte[] theta = Hex.decode((String) wanted.get("model"));
        byte[] patch = Hex.decode((String) wanted.get("patch"));
        byte[] model = new SparseVector(5, null, Vectors.floats(theta)).encode(Coding.FP32, Compression.NONE);
        Map<Object, Object> codec = new HashMap<>((Map<?, ?>) wanted.get("codec"));
        codec.put("compression", "none");
        List<String> keep = new ArrayList<>();
        for (Object name : (List<?>) wanted.get("keep")) {
            keep.add((String) name);
        }
        Work work = wanted.containsKey("work") ? Work.SCHEMA.read(wanted.get("work"))
                : Work.SCHEMA.empty().with(Work.KEEP, keep).with(Work.UPLOAD, (Boolean) wanted.get("upload"))
                        .with(Work.TRAINING, Training.SCHEMA.read(wanted.get("training")));
        String correction = wanted.containsKey("correction") ? (String) wanted.get("correction") : "";
        Manifest corrected = correction.isEmpty() ? null
                : blob(new SparseVector(5, null, Vectors.floats(Hex.decode(correction))).encode(Coding.FP32, Compression.NONE));
        return Order.SCHEMA.empty().with(Order.RUN, "line").with(Order.ROUND, round)
                .with(Order.TASK, (String) wanted.get("task")).with(Order.BUNDLE, blob(bundle(given, wanted)))
                .with(Order.MODEL, blob(model)).with(Order.MODEL_HASH, Digests.sha256(theta)).with(Order.PATCH, patch)
                .with(Order.PATCH_HASH, patch.length == 0 ? patch : Digests.sha256(patch)).with(Order.WORK, work)
                .with(Order.CODEC, Codec.SCHEMA.read(codec)).with(Order.SEED, (Long) wanted.get("seed"))
                .with(Order.CORRECTION, corrected);
    }

    private Manifest blob(byte[] data) throws SedgeException {
        disk.write(data);
        return Manifest.describe(data, 4096);
    }

    private static byte[] bundle(Map<?, ?> given, Map<?, ?> wanted) throws Exception {
        Map<String, Object> files = new LinkedHashMap<>();
        StringBuilder programs = new StringBuilder();
        for (String name : new String[] {"gradient", "evaluate"}) {
            byte[] file = name.getBytes(StandardCharsets.US_ASCII);
            files.put(name, file);
            programs.append(programs.length() > 0 ? "," : "").append("{\"name\":\"").append(name)
                    .append("\",\"backend\":\"line\",\"file\":\"").append(name).append("\",\"sha256\":\"")
                    .append(Hex.encode(Digests.sha256(file))).append("\"}");
        }
        String manifest = "{\"format\":1,\"name\":\"" + wanted.get("bundle") + "\",\"layout\":{\"tensors\":["
                + "{\"name\":\"slope\",\"shape\":[3],\"offset\":0},{\"name\":\"offset\",\"shape\":[],\"offset\":3},"
                + "{\"name\":\"seen\",\"shape\":[],\"offset\":4,\"role\":\"statistic\"}]},"
                + "\"batch_size\":" + given.get("batch_size") + ",\"input\":{\"dtype\":\"float32\",\"shape\":[3]},"
                + "\"target\":{\"dtype\":\"float32\",\"shape\":[]},\"num_classes\":0,"
                + "\"metric\":{\"name\":\"mean_absolute_error\",\"better\":\"lower\"},\"uses_batch_statistics\":"
                + given.get("uses_batch_statistics") + ",\"programs\":[" + programs + "],\"verification\":null}";
        return TrialsTest.packed(manifest, files);
    }

    private static Examples examples(Object given) throws SedgeException {
        float[] x = Vectors.floats(Hex.decode((String) ((Map<?, ?>) given).get("x")));
        float[] y = Vectors.floats(Hex.decode((String) ((Map<?, ?>) given).get("y")));
        return new Examples(new Rows(x, 3), new Rows(y));
    }
}
