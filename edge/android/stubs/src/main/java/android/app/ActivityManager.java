package android.app;

import java.util.List;

/** Declares the method that we call; it was added in API 30. Used only for compiling. */
public class ActivityManager {
    public List<ApplicationExitInfo> getHistoricalProcessExitReasons(String packageName, int pid, int maxNum) {
        throw new AssertionError("stub");
    }
}
