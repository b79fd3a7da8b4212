package android.app;

import android.os.OtherProcess;

import java.util.Collections;
import java.util.List;

/** Knows only the second time that it is asked how a process ended; of a kill, that memory was short. */
public class ActivityManager {
    private static final int SIGKILL = 9;
    private int asked;

    public List<ApplicationExitInfo> getHistoricalProcessExitReasons(String packageName, int pid, int maxNum) {
        if (asked++ == 0) {
            return Collections.emptyList();
        }
        try {
            int signal = OtherProcess.status(pid) - 128; // as Java says it
            return Collections.singletonList(signal == SIGKILL
                    ? new ApplicationExitInfo(ApplicationExitInfo.REASON_LOW_MEMORY, 0)
                    : new ApplicationExitInfo(ApplicationExitInfo.REASON_CRASH_NATIVE, signal));
        } catch (InterruptedException error) {
            throw new IllegalStateException(error);
        }
    }
}
