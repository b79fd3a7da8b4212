package org.sedge.jvm;

import org.sedge.edge.Agent;
import org.sedge.edge.AgentConfig;
import org.sedge.edge.AgentListener;
import org.sedge.edge.SedgeException;
import org.sedge.edge.SedgeException.ConfigError;
import org.sedge.edge.backends.Backend;
import org.sedge.edge.host.Disk;
import org.sedge.edge.host.Npz;
import org.sedge.edge.wire.Hex;
import org.sedge.edge.wire.Metric;
import org.sedge.edge.wire.PinnedKeys;

import java.io.File;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * Runs a device on a JVM: {@code Main FOLDER BACKEND-CLASS ...}, with a folder written by
 * {@code sedge-cloud device add} and the classes of the backends to use, or
 * {@code Main JOIN-TEXT STATE-FOLDER DATA.npz BACKEND-CLASS ...}.
 */
public final class Main {
    /**
     * Matches the subset of TOML that {@code device add} writes: sections, and keys whose value is a string or a list
     * on one line.
     */
    private static final Pattern LINE =
            Pattern.compile("\\s*(?:\\[([\\w.]+)\\]|(\\w+)\\s*=\\s*(\"([^\"\\\\]*)\"|\\[[^\\]#]*\\]|[^\"#]+?))?\\s*(?:#.*)?");

    private Main() {}

    public static void main(String[] words) {
        try {
            boolean joins = words.length > 3 && words[0].startsWith("sedge:");
            if (!joins && (words.length < 2 || words[0].startsWith("sedge:"))) {
                throw new ConfigError("expected FOLDER BACKEND-CLASS ..., or JOIN-TEXT STATE-FOLDER DATA.npz "
                        + "BACKEND-CLASS ...");
            }
            File folder = new File(words[0]);
            Map<String, String> values = joins ? new HashMap<>() : values(new File(folder, "edge.toml"));
            AgentConfig config = joins ? AgentConfig.fromJoinText(words[0]) : config(folder, values);
            File state = joins ? new File(words[1]) : file(folder, values, "state_dir");
            File data = joins ? new File(words[2]) : file(folder, values, "data.train");
            Agent agent = new Agent(
                    config, state, backends(words, joins ? 3 : 1), new ChildProcess(), Npz.read(data), new Printer());
            Thread main = Thread.currentThread();
            Runtime.getRuntime().addShutdownHook(new Thread() {
                @Override
                public void run() {
                    agent.stop();
                    try {
                        main.join(20_000);
                    } catch (InterruptedException error) {
                        interrupt();
                    }
                }
            });
            agent.run();
        } catch (SedgeException error) {
            System.err.println("sedge: " + error.getMessage());
            System.exit(2);
        }
    }

    private static List<Backend> backends(String[] words, int from) throws ConfigError {
        List<Backend> found = new ArrayList<>();
        for (int i = from; i < words.length; i++) {
            found.add(Backend.of(words[i]));
        }
        return found;
    }

    /** Reads the configuration from a folder with an edge.toml. */
    public static AgentConfig config(File folder) throws SedgeException {
        return config(folder, values(new File(folder, "edge.toml")));
    }

    private static AgentConfig config(File folder, Map<String, String> values) throws SedgeException {
        File secretFile = file(folder, values, "secret_file");
        byte[] secret;
        try {
            secret = Hex.decode(text(secretFile).trim());
        } catch (IllegalArgumentException error) {
            throw new ConfigError(secretFile + ": secret", "'not a hexadecimal number'", "64 hex digits");
        }
        if (secret.length != 32) {
            throw new ConfigError(secretFile + ": secret", "'" + secret.length + " bytes'", "64 hex digits");
        }
        String ca = values.containsKey("broker.ca_file") ? text(file(folder, values, "broker.ca_file")) : null;
        try {
            AgentConfig config = new AgentConfig(
                    values.get("device"), values.get("fleet"), values.get("broker.url"), secret, ca)
                    .with(new PinnedKeys(texts(values.get("trust.keys"))));
            boolean certified = values.containsKey("broker.cert_file");
            return certified ? config.certified(Disk.read(file(folder, values, "broker.cert_file"))) : config;
        } catch (ConfigError error) {
            throw new ConfigError(new File(folder, "edge.toml") + ": " + error.getMessage());
        }
    }

    private static Map<String, String> values(File file) throws SedgeException {
        Map<String, String> found = new HashMap<>();
        String section = "";
        for (String line : text(file).split("\n")) {
            Matcher parts = LINE.matcher(line);
            if (!parts.matches()) {
                throw new ConfigError(file + ": found '" + line.trim() + "', expected key = \"text\" or [section]");
            }
            section = parts.group(1) == null ? section : parts.group(1) + ".";
            if (parts.group(2) != null) {
                found.put(section + parts.group(2), parts.group(4) == null ? parts.group(3) : parts.group(4));
            }
        }
        return found;
    }

    /** Returns the strings of a TOML list on one line; an empty list if {@code list} is null. */
    private static List<String> texts(String list) {
        List<String> found = new ArrayList<>();
        Matcher text = Pattern.compile("\"([^\"]*)\"").matcher(list == null ? "" : list);
        while (text.find()) {
            found.add(text.group(1));
        }
        return found;
    }

    private static File file(File folder, Map<String, String> values, String key) throws ConfigError {
        String path = values.get(key);
        if (path == null) {
            throw new ConfigError(new File(folder, "edge.toml") + ": " + key, null, "a path");
        }
        return new File(path).isAbsolute() ? new File(path) : new File(folder, path);
    }

    private static String text(File file) throws SedgeException {
        return new String(Disk.read(file), StandardCharsets.UTF_8);
    }

    /** Prints what the agent does. */
    private static final class Printer implements AgentListener {
        @Override
        public void joined(String fleet, String device) {
            System.out.println("joined " + fleet + " as " + device);
        }

        @Override
        public void disconnected(String reason) {
            System.out.println("disconnected: " + reason);
        }

        @Override
        public void trouble(String text) { } // already logged, on stderr

        @Override
        public void training(String run, int round) {
            System.out.println("run " + run + ", round " + round + ": training");
        }

        @Override
        public void finished(String run, int round, Metric metric, double before, double after, long bytesUp,
                long bytesDown) {
            System.out.println("run " + run + ", round " + round + ": stored; " + metric.said(before)
                    + " before training, " + metric.said(after) + " after; " + bytesUp + " bytes up, " + bytesDown
                    + " down");
        }

        @Override
        public void declined(String run, int round, String reason) {
            System.out.println("run " + run + ", round " + round + ": declined: " + reason);
        }
    }
}
