package android.content;

/** Replaces Android's class for tests on a JVM: the name of a class. */
public class ComponentName {
    public final String name;

    public ComponentName(Context context, Class<?> named) {
        name = named.getSimpleName();
    }
}
