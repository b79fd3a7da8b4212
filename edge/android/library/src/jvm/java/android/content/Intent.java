package android.content;

/** Replaces Android's class for tests on a JVM. It names a service. */
public class Intent {
    final Class<?> named;

    public Intent(Context context, Class<?> named) {
        this.named = named;
    }
}
