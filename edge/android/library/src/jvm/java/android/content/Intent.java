package android.content;

/** An app without a screen has none. */
public class Intent {}
