package org.sedge.edge;

import org.sedge.edge.host.Journal;

import java.io.File;
import java.util.Arrays;

/**
 * The newest certificate that the coordinator has sent since the device joined, stored in the device's state folder
 * (protocol/spec/enrolment.md, E19).
 *
 * <p>The file begins with the name of the configuration's certificate. If the configuration gets another certificate,
 * the configuration's certificate is used instead.
 */
public final class KeptCertificate {
    private final AgentConfig given;
    private final File file;

    /** @param given the configuration with which the device joined */
    public KeptCertificate(AgentConfig given, File stateFolder) {
        this.given = given;
        file = new File(stateFolder, "certificate");
    }

    /** Returns the configuration with the newest certificate. */
    public AgentConfig newest() throws SedgeException {
        if (given.certificate == null) {
            return given;
        }
        byte[] base = given.certificate.name();
        byte[] kept = new Journal(file).load();
        boolean isSuccessor = kept != null && Arrays.equals(Arrays.copyOf(kept, base.length), base);
        return isSuccessor ? given.certified(Arrays.copyOfRange(kept, base.length, kept.length)) : given;
    }

    /**
     * Stores a newer certificate, given in DER.
     *
     * @return the configuration with the newer certificate
     * @throws SedgeException if the certificate is not for the device's key, or the disk fails
     */
    AgentConfig replace(byte[] der) throws SedgeException {
        AgentConfig renewed = given.certified(der);
        byte[] base = given.certificate.name();
        byte[] value = Arrays.copyOf(base, base.length + der.length);
        System.arraycopy(der, 0, value, base.length, der.length);
        new Journal(file).commit(value);
        return renewed;
    }
}
