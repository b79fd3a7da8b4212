package android.app;

import android.os.OtherProcess;

import java.util.Collections;
import java.util.List;

/**
 * Replaces Android's class for tests on a JVM. It reports how a process ended only when asked for the second time. A
 * killed process is reported as having run out of memory.
 */
public class ActivityManager {
    private static final int SIGKILL = 9;
    private int asked;

    public List<ApplicationExitInfo> getHistoricalProcessExitReasons(String packageName, int pid, int maxNum) {
        if (asked++ == 0) {
            return Collections.emptyList();
        }
        try {
            int signal = OtherProcess.status(pid) - 128; // Java adds 128 to the signal's number
            return Collections.singletonList(signal == SIGKILL
                    ? new ApplicationExitInfo(ApplicationExitInfo.REASON_LOW_MEMORY, 0)
                    : new ApplicationExitInfo(ApplicationExitInfo.REASON_CRASH_NATIVE, signal));
        } catch (InterruptedException error) {
            throw new IllegalStateException(error);
        }
    }
}
