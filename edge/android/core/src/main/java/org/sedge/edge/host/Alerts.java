package org.sedge.edge.host;

import org.jspecify.annotations.Nullable;

import java.util.Locale;

/** Explains a broker's TLS alerts about our certificate, in the same words as the Python agent. */
final class Alerts {
    private static final String OTHER_AUTHORITY = "our certificate was issued by another authority";
    private static final String[][] MEANINGS = {
        {"certificate_expired", "our certificate has expired"},
        {"certificate_revoked", "our certificate was revoked"},
        {"certificate_required", "it requires a certificate, but we have none"},
        {"bad_certificate", "our certificate is damaged, or not yet valid by the broker's clock"},
        {"unknown_ca", OTHER_AUTHORITY},
        {"decrypt_error", OTHER_AUTHORITY},
    };

    private Alerts() {}

    /**
     * Returns the meaning of the alert in an error; null if the error contains no alert. A JVM says "Received fatal
     * alert: unknown_ca", Android "TLSV1_ALERT_UNKNOWN_CA", or for some alerts of TLS 1.3 "TLSV1_CERTIFICATE_REQUIRED".
     */
    static @Nullable String meaning(Throwable error) {
        String text = String.valueOf(error.getMessage()).toLowerCase(Locale.ROOT);
        for (String[] one : MEANINGS) {
            for (String before : new String[] {"fatal alert: ", "alert_", "tlsv1_"}) {
                if (text.contains(before + one[0])) {
                    return one[1];
                }
            }
        }
        return null;
    }
}
