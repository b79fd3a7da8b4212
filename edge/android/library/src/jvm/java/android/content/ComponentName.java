package android.content;

/** A class by name. */
public class ComponentName {
    public final String name;

    public ComponentName(Context context, Class<?> named) {
        name = named.getSimpleName();
    }
}
