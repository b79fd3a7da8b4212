package org.sedge.jvm;

import org.sedge.edge.SedgeException;
import org.sedge.edge.backends.Backend;
import org.sedge.edge.backends.Sandbox;
import org.sedge.edge.backends.Tryout;
import org.sedge.executorch.JvmExecutorch;

import java.io.BufferedReader;
import java.io.File;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.OutputStreamWriter;
import java.io.Writer;
import java.lang.management.ManagementFactory;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;

/**
 * Tries out programs in a separate JVM, started with this JVM's class path and options. Its arguments are
 * {@code FOLDER BACKEND-CLASS}.
 */
public final class ChildProcess implements Sandbox {
    /** The prefix of an answer. Runtimes and a crashing JVM may print other lines. */
    private static final String RAN = "ran ";
    private static final String REFUSED = "refused ";
    /** SIGHUP, SIGINT, SIGKILL and SIGTERM, which are sent by another process. */
    private static final List<Integer> FROM_OUTSIDE = Arrays.asList(1, 2, 9, 15);

    @Override
    public String host() {
        List<String> files = new ArrayList<>(
                Arrays.asList(System.getProperty("java.class.path").split(File.pathSeparator)));
        files.add(System.getProperty(JvmExecutorch.LIBRARY, ""));
        StringBuilder text = new StringBuilder(
                System.getProperty("java.vm.version") + " " + System.getProperty("os.version"));
        for (String file : files) {
            text.append(' ').append(file).append(' ').append(new File(file).lastModified());
        }
        return text.toString();
    }

    @Override
    public Trial begin(File folder, Backend backend) throws IOException {
        List<String> words = new ArrayList<>();
        words.add(new File(System.getProperty("java.home"), "bin/java").getPath());
        words.addAll(ManagementFactory.getRuntimeMXBean().getInputArguments());
        words.addAll(Arrays.asList("-XX:+SuppressFatalErrorMessage", // write no crash report to the working folder
                "-cp", System.getProperty("java.class.path"),
                ChildProcess.class.getName(), folder.getPath(), backend.getClass().getName()));
        return new Child(new ProcessBuilder(words).redirectError(ProcessBuilder.Redirect.INHERIT).start());
    }

    private static final class Child implements Trial {
        private final Process process;
        private final Writer requests;
        private final BufferedReader answers;

        Child(Process process) {
            this.process = process;
            requests = new OutputStreamWriter(process.getOutputStream(), StandardCharsets.UTF_8);
            answers = new BufferedReader(new InputStreamReader(process.getInputStream(), StandardCharsets.UTF_8));
        }

        @Override
        public boolean run(String program, int sample) throws IOException, Crash {
            String answer;
            try {
                requests.write(program + " " + sample + "\n");
                requests.flush();
                do {
                    answer = answers.readLine();
                } while (answer != null && !answer.startsWith(RAN) && !answer.startsWith(REFUSED));
            } catch (IOException broken) { // the process has ended
                answer = null;
            }
            if (answer == null) {
                throw crash();
            }
            if (answer.startsWith(REFUSED)) {
                throw new IOException(answer.substring(REFUSED.length()));
            }
            return Boolean.parseBoolean(answer.substring(RAN.length()));
        }

        private Crash crash() throws IOException {
            try {
                int status = process.waitFor();
                int signal = status - 128; // Java adds 128 to the signal's number
                return signal > 0 ? new Crash("signal " + signal, !FROM_OUTSIDE.contains(signal))
                        : new Crash("exit status " + status, false);
            } catch (InterruptedException error) {
                throw new IOException(error);
            }
        }

        @Override
        public void close() {
            process.destroyForcibly();
        }
    }

    /** Tries out programs in the new JVM. Each line of standard input names a program and a sample. */
    public static void main(String[] words) throws IOException {
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        Tryout tryout = null;
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            String[] asked = line.split(" ");
            try {
                tryout = tryout == null ? new Tryout(new File(words[0]), words[1]) : tryout;
                System.out.println(RAN + tryout.run(asked[0], Integer.parseInt(asked[1])));
            } catch (SedgeException error) {
                System.out.println(REFUSED + error.getMessage());
            }
        }
    }
}
