package org.sedge.android;

import org.sedge.edge.AgentConfig;
import org.sedge.edge.SedgeException;
import org.sedge.edge.wire.Hex;

import java.time.Instant;

/**
 * Prints the contents of each join text on one line, or why it is refused. For a certificate, prints what a device
 * whose clock shows 1970 says about it.
 */
public final class ReadJoinText {
    private ReadJoinText() {}

    public static void main(String[] words) {
        for (String word : words) {
            try {
                AgentConfig config = AgentConfig.fromJoinText(word);
                String ca = config.caPem == null ? "no authority" : config.caPem.replace("\n", "|");
                String own = config.certificate == null ? "" : " " + config.certificate.said(Instant.EPOCH);
                System.out.println(config.device + " " + config.fleet + " " + config.url + " "
                        + Hex.encode(config.secret()) + " " + ca + own);
            } catch (SedgeException error) {
                System.out.println(error.getMessage());
            }
        }
    }
}
