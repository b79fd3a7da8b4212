package android.app;

import java.util.List;

/** As it is from API 30 on: the method that we call. Compile-only. */
public class ActivityManager {
    public List<ApplicationExitInfo> getHistoricalProcessExitReasons(String packageName, int pid, int maxNum) {
        throw new AssertionError("stub");
    }
}
