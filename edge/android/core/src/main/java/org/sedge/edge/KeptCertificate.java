package org.sedge.edge;

import org.sedge.edge.host.Journal;

import java.io.File;
import java.util.Arrays;

/**
 * The certificate that the coordinator has sent since, in the device's state folder (protocol/spec/enrolment.md, E19).
 *
 * <p>It is stored behind the name of the configuration's certificate: another one there takes its place.
 */
public final class KeptCertificate {
    private final AgentConfig given;
    private final File file;

    /** @param given the configuration as it was joined with */
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
     * Stores a later certificate, DER.
     *
     * @return the configuration with it
     * @throws SedgeException if it is not for the device's key, or the disk refuses
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
