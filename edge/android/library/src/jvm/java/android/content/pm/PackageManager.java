package android.content.pm;

import android.content.Intent;

/** Knows of no screen that a notification could open. */
public class PackageManager {
    public Intent getLaunchIntentForPackage(String name) {
        return null;
    }
}
