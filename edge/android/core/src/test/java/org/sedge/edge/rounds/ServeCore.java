package org.sedge.edge.rounds;

import org.sedge.edge.AgentListener;
import org.sedge.edge.Downloads;
import org.sedge.edge.SedgeException.BrokenSteps;
import org.sedge.edge.SedgeException.StorageError;
import org.sedge.edge.host.BlobFolder;
import org.sedge.edge.host.Disk;
import org.sedge.edge.host.Journal;
import org.sedge.edge.host.WebSpan;
import org.sedge.edge.jobs.Job;
import org.sedge.edge.wire.DeviceKeys;
import org.sedge.edge.wire.Hex;
import org.sedge.edge.wire.Messages.Hello;
import org.sedge.edge.wire.Metric;

import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Collections;
import java.util.Random;
import java.util.logging.Level;

/**
 * A core that a test in Python drives: {@code FOLDER SECRET [CA-FILE]}. A line of standard input is a call, its answer
 * one line for each effect and a dot. What it asks web servers for, it has before it answers.
 */
public final class ServeCore implements Effects, AgentListener, Downloader {
    private final Downloads downloads;
    private Span asked;

    private ServeCore(Downloads downloads) {
        this.downloads = downloads;
    }

    public static void main(String[] words) throws Exception {
        String ca = words.length < 3 ? null : new String(Disk.read(new File(words[2])), StandardCharsets.US_ASCII);
        ServeCore shell = new ServeCore(Downloads.from(true, Collections.<String>emptyList(), ca));
        File folder = new File(words[0]);
        AgentCore core;
        try {
            core = new AgentCore("test", "pi-1", new DeviceKeys(Hex.decode(words[1])), Hello.SCHEMA.empty()
                    .with(Hello.NONCE, new byte[16]).with(Hello.VERSION, "test"), new BlobFolder(folder, 1),
                    new Journal(new File(folder, "journal")), new Random(1), 0, null, shell, shell);
        } catch (StorageError error) {
            shell.say("refused " + error.getMessage());
            return;
        }
        core.allow(shell);
        core.will();
        shell.say(".");
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] call = line.split(" ", 4);
            double now = Double.parseDouble(call[1]);
            switch (call[0]) {
                case "connected":
                    core.connected(now, Integer.parseInt(call[2]));
                    break;
                case "receive":
                    core.receive(call[2], Hex.decode(call[3]), now);
                    break;
                case "broken":
                    core.failed(new BrokenSteps(call[2] + " " + call[3]), now);
                    break;
                default:
                    core.poll(now);
            }
            shell.download(core, now);
            shell.say(".");
        }
    }

    private void download(AgentCore core, double now) {
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

    private void say(String line) {
        System.out.println(line);
    }

    @Override
    public void send(String topic, byte[] payload) {
        say("send " + topic + " " + Hex.encode(payload));
    }

    @Override
    public void note(Level level, String text) {
        say("note " + level + " " + text);
    }

    @Override
    public void start(Job job) { }

    @Override
    public void subscribe(String topic) { }

    @Override
    public void unsubscribe(String topic) { }

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
