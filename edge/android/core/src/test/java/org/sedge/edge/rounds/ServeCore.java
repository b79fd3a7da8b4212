package org.sedge.edge.rounds;

import org.sedge.edge.AgentListener;
import org.sedge.edge.Downloads;
import org.sedge.edge.Limits;
import org.sedge.edge.SedgeException;
import org.sedge.edge.backends.Asking;
import org.sedge.edge.backends.Programs;
import org.sedge.edge.backends.Trials;
import org.sedge.edge.backends.Trusting;
import org.sedge.edge.host.Disk;
import org.sedge.edge.host.Journal;
import org.sedge.edge.host.Npz;
import org.sedge.edge.host.SayWhy;
import org.sedge.edge.host.WebSpan;
import org.sedge.edge.jobs.Job;
import org.sedge.edge.training.JobRunner;
import org.sedge.edge.training.JobStopped;
import org.sedge.edge.wire.Hex;
import org.sedge.edge.wire.Messages.Hello;
import org.sedge.edge.wire.Metric;
import org.sedge.edge.wire.PinnedKeys;
import org.sedge.jvm.Main;

import java.io.BufferedReader;
import java.io.File;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.Map;
import java.util.Random;
import java.util.logging.Level;

/**
 * Runs agent cores for tests in Python, all in one JVM (tests/edge/java_core.py). Each line of standard input contains
 * the name of a core, a call and its arguments. The answer consists of one line for each effect, then a line with a dot
 * and the result. HTTP downloads started by a call are finished before the answer is printed. Before the answer,
 * programs may also ask Python for their outputs.
 */
public final class ServeCore implements Effects, AgentListener, Downloader {
    private static final BufferedReader IN =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));

    private final File folder;
    private final RefusingDisk disk;
    private final Downloads downloads;
    private final AgentCore core;
    private Span asked;
    private Job job;

    /** Creates a core from FOLDER SECRET HELLO LIMITS PINNED-KEYS CLOCK [CA-FILE], where a dash means none. */
    private ServeCore(String[] words) throws SedgeException {
        String ca = words.length < 9 ? null : new String(Disk.read(new File(words[8])), StandardCharsets.US_ASCII);
        downloads = Downloads.from(true, Collections.<String>emptyList(), ca);
        folder = new File(words[2]);
        disk = new RefusingDisk(folder);
        Disk.makeFolder(new File(folder, "programs"));
        core = new AgentCore("test", "pi-1", keyring(words[3]),
                Hello.SCHEMA.decode(Hex.decode(words[4])), disk, disk, new Random(3), Long.parseLong(words[7]),
                limits(words[5]), pinned(words[6]), this, this);
        core.allow(this);
    }

    private Keyring keyring(String secret) throws SedgeException {
        return new Keyring(Hex.decode(secret), "test", "pi-1", new Journal(new File(folder, "keys")));
    }

    private static PinnedKeys pinned(String keys) throws SedgeException {
        return keys.equals("-") ? PinnedKeys.NONE : new PinnedKeys(Arrays.asList(keys.split(",")));
    }

    private static Limits limits(String text) {
        if (text.equals("-")) {
            return null;
        }
        String[] words = text.split(",");
        return new Limits(Integer.parseInt(words[0]), Double.parseDouble(words[1]), Double.parseDouble(words[2]), 1);
    }

    public static void main(String[] nothing) throws Exception {
        Map<String, ServeCore> cores = new HashMap<>();
        for (String line = IN.readLine(); line != null; line = IN.readLine()) {
            String[] words = line.split(" ", -1);
            String result = "";
            try {
                if (words[1].equals("begin")) {
                    cores.put(words[0], new ServeCore(words));
                } else if (words[1].equals("end")) {
                    cores.remove(words[0]);
                } else if (words[1].equals("turns")) {
                    result = String.valueOf(RefusingDisk.turns(words));
                } else if (words[1].equals("config")) {
                    Main.config(new File(words[2]));
                } else if (words[1].equals("decode")) {
                    result = Decoders.refusal(words[2], Hex.decode(words[3]));
                } else if (words[1].equals("why")) {
                    result = Hex.encode(SayWhy.why(words[2]).getBytes(StandardCharsets.UTF_8));
                } else {
                    result = cores.get(words[0]).call(words);
                }
            } catch (SedgeException error) {
                say("refused " + error.getMessage());
                continue;
            } catch (RefusingDisk.Killed killed) {
                say("killed");
                continue;
            }
            say("." + result);
        }
    }

    private String call(String[] words) throws Exception {
        if (words[1].equals("refuse")) {
            disk.refused = words[2];
            disk.least = Integer.parseInt(words[3]);
            disk.but = words[4];
            return "";
        }
        double now = words.length > 2 ? Double.parseDouble(words[2]) : 0;
        switch (words[1]) {
            case "will":
                return Hex.encode(core.will());
            case "goodbye":
                core.goodbye();
                break;
            case "connected":
                core.connected(now, Integer.parseInt(words[3]));
                break;
            case "other-password":
                return String.valueOf(core.otherPassword());
            case "disconnected":
                core.disconnected();
                break;
            case "receive":
                core.receive(words[3], Hex.decode(words[4]), now);
                break;
            case "work":
                work(now, Integer.parseInt(words[3]), new File(words[4]), new File(words[5]));
                break;
            case "failed":
                core.failed(Asking.error(words[3], new String(Hex.decode(words[4]), StandardCharsets.UTF_8)), now);
                break;
            case "interrupted":
                core.interrupted(words[3].isEmpty() ? null : Hex.decode(words[3]));
                break;
            case "timer":
                return String.valueOf(core.timer());
            case "idle":
                return String.valueOf(core.idle());
            case "welcomed":
                return String.valueOf(core.welcomed());
            case "must-stop":
                return String.valueOf(core.mustStop(now));
            default:
                core.poll(now);
        }
        download(now);
        return "";
    }

    /** Runs the current job, and stops it after {@code steps} steps unless the number is negative. */
    private void work(double now, int steps, File train, File test) throws IOException {
        Asking asking = new Asking(IN);
        try {
            Trials trials = new Trials(folder, new Trusting(), disk);
            Programs programs = new Programs(
                    new File(folder, "programs"), Collections.singletonList(asking), trials);
            JobRunner runner = new JobRunner(disk, programs, Npz.read(train), Npz.read(test));
            core.finished(runner.run(job, () -> asking.gradients == steps), now);
        } catch (SedgeException error) {
            core.failed(error, now);
        } catch (JobStopped stop) {
            core.interrupted(stop.checkpoint);
        }
    }

    private void download(double now) {
        while (asked != null) {
            Span span = asked;
            asked = null;
            WebSpan web = new WebSpan(span, downloads);
            String error = web.fetch((index, data) -> {
                core.fetched(span.number, index, data, now);
                return true;
            });
            core.fetchEnded(span.number, error, now);
        }
    }

    @Override
    public boolean permits(String url) {
        return downloads.permits(url);
    }

    @Override
    public void fetch(Span span) {
        asked = span;
    }

    @Override
    public void stop() { }

    private static void say(String line) {
        System.out.println(line);
    }

    @Override
    public void send(String topic, byte[] payload) {
        say("send " + topic + " " + Hex.encode(payload));
    }

    @Override
    public void keepCertificate(byte[] der) {
        say("keep " + Hex.encode(der));
    }

    @Override
    public void note(Level level, String text) {
        say("note " + level + " " + Hex.encode(text.getBytes(StandardCharsets.UTF_8)));
    }

    @Override
    public void start(Job started) {
        job = started;
        say("start " + Hex.encode(job.order.encode()) + " " + Hex.encode(job.kept.encode()));
    }

    @Override
    public void subscribe(String topic) {
        if (!topic.contains("/shard/")) { // in Python the shell subscribes to these, not the core
            say("subscribe " + topic);
        }
    }

    @Override
    public void unsubscribe(String topic) {
        say("unsubscribe " + topic);
    }

    @Override
    public void joined(String fleet, String device) { }

    @Override
    public void disconnected(String reason) { }

    @Override
    public void trouble(String text) { }

    @Override
    public void training(String run, int round) { }

    @Override
    public void finished(String run, int round, Metric metric, double before, double after, long up, long down) {
        say("heard finished " + run + " " + round + " " + before + " " + after + " " + up + " " + down);
    }

    @Override
    public void declined(String run, int round, String reason) {
        say("heard declined " + run + " " + round + " " + reason);
    }
}
