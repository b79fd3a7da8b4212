package android.content.pm;

import android.content.Intent;

/** Replaces Android's class for tests on a JVM. The app has no screen that a notification could open. */
public class PackageManager {
    public Intent getLaunchIntentForPackage(String name) {
        return null;
    }
}
