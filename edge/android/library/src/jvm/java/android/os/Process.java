package android.os;

import java.io.IOException;
import java.lang.management.ManagementFactory;

/** Replaces Android's class for tests on a JVM. It stands for processes of the machine that runs the tests. */
public final class Process {
    private Process() {}

    public static int myPid() {
        return Integer.parseInt(ManagementFactory.getRuntimeMXBean().getName().split("@")[0]);
    }

    public static void killProcess(int pid) {
        try {
            new ProcessBuilder("kill", "-9", String.valueOf(pid)).start().waitFor();
        } catch (IOException | InterruptedException error) {
            throw new IllegalStateException(error);
        }
    }
}
