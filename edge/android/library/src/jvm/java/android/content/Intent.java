package android.content;

/** What names a service. */
public class Intent {
    final Class<?> named;

    public Intent(Context context, Class<?> named) {
        this.named = named;
    }
}
