package org.sedge.edge;

import static org.junit.Assert.assertArrayEquals;
import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertThrows;
import static org.junit.Assert.assertTrue;

import org.junit.Rule;
import org.junit.Test;
import org.junit.rules.TemporaryFolder;
import org.sedge.edge.SedgeException.ConfigError;
import org.sedge.edge.SedgeException.DataError;
import org.sedge.edge.SedgeException.StorageError;
import org.sedge.edge.backends.ClassMeans;
import org.sedge.edge.backends.Trusting;
import org.sedge.edge.host.BlobFolder;
import org.sedge.edge.host.Machine;
import org.sedge.edge.host.Npz;
import org.sedge.edge.wire.Hex;

import java.io.File;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.attribute.PosixFilePermissions;
import java.util.Arrays;
import java.util.Base64;
import java.util.Collections;

/**
 * Tests what an app uses directly (join texts, examples, the state folder), and the errors raised when these are wrong.
 */
public class AgentTest {
    private static final String SECRET = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

    /** The self-signed certificate of a made-up authority. */
    private static final String PEM = String.join("\n",
            "-----BEGIN CERTIFICATE-----",
            "MIIBbzCCARWgAwIBAgIUVRhGEVuK2Ecifjq11DKOid/rExIwCgYIKoZIzj0EAwIw",
            "DDEKMAgGA1UEAwwBdDAgFw0yNjExMjQwMDEwMTBaGA8yMTI2MTAzMTAwMTAxMFow",
            "DDEKMAgGA1UEAwwBdDBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IABFPCexQZGn/6",
            "wHWSWswVklpEiW2IUNoTVOjfKtMipKffEv6TewUms8NE4mA25Ny8qt0ojyMWcZVJ",
            "FNgrh5zAthajUzBRMB0GA1UdDgQWBBT0bvz4DysXxKbqATS00M/i8waK+DAfBgNV",
            "HSMEGDAWgBT0bvz4DysXxKbqATS00M/i8waK+DAPBgNVHRMBAf8EBTADAQH/MAoG",
            "CCqGSM49BAMCA0gAMEUCICyWYUfZOabPnGqhATkVwfSHdHQP23+5uGUqtVlY589W",
            "AiEAuUfWtWafJR6z4qxF+FMEUwyZPaJFq2ogs8MjAr507yM=",
            "-----END CERTIFICATE-----") + "\n";

    @Rule
    public final TemporaryFolder folder = new TemporaryFolder();

    private static String joinText(String json) {
        return "sedge:" + Base64.getUrlEncoder().withoutPadding().encodeToString(json.getBytes(StandardCharsets.UTF_8));
    }

    private static String json(String... pairs) {
        StringBuilder text = new StringBuilder();
        for (int i = 0; i < pairs.length; i += 2) {
            text.append(i > 0 ? "," : "").append('"').append(pairs[i]).append("\":\"").append(pairs[i + 1]).append('"');
        }
        return "{" + text + "}";
    }

    @Test
    public void joinTextsAreRead() throws SedgeException {
        AgentConfig plain = AgentConfig.fromJoinText(joinText(json(
                "device", "pi-1", "fleet", "home", "url", "mqtt://example.org", "secret", SECRET)));
        assertEquals(Arrays.asList("example.org", 1883, false, null),
                Arrays.asList(plain.host, plain.port, plain.tls, plain.caPem));
        AgentConfig secured = AgentConfig.fromJoinText(joinText(json("device", "pi-1", "fleet", "home", "url",
                "mqtts://[::1]:1234", "secret", SECRET, "ca", PEM.replace("\n", "\\n"), "later", "ignored")));
        assertEquals(Arrays.asList("[::1]", 1234, true, PEM),
                Arrays.asList(secured.host, secured.port, secured.tls, secured.caPem));
    }

    @Test
    public void anyOtherTextIsOneErrorWithoutTheSecret() {
        for (String text : new String[] {
            null, "", "sedge:",
            joinText(json("device", "d", "fleet", "f", "url", "mqtt://u:p@h", "secret", SECRET)),
            joinText(json("device", "d", "fleet", "f", "url", "mqtt://h", "secret", SECRET, "ca", PEM.replace("\n", "\\n"))),
            joinText(json("device", "d", "fleet", "f", "url", "mqtts://h", "secret", SECRET, "ca", "no certificate")),
        }) {
            String said = assertThrows(text, ConfigError.class, () -> JoinText.parse(text)).getMessage();
            assertTrue(said, said.startsWith("join text: "));
            assertTrue(said, !said.contains(SECRET.substring(2, 20)) && !said.contains("u:p"));
        }
    }

    @Test
    public void examplesAreCheckedAndSplitAsThePythonAgentDoes() throws SedgeException {
        long[] labels = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
        Examples[] parts = new Examples(new Rows(new float[20], 2), new Rows(labels)).split(0.2, 1);
        // With seed 1 and 10 examples, the permutation begins with 4 5 (protocol/spec/training.md).
        assertArrayEquals(new long[] {4, 5}, parts[1].targets.longs());
        assertArrayEquals(new long[] {0, 1, 2, 3, 6, 7, 8, 9}, parts[0].targets.longs());
        assertThrows(DataError.class, () -> new Rows(new float[5], 2));
        assertThrows(DataError.class, () -> new Rows(new float[0], 0));
        assertThrows(DataError.class, () -> new Examples(new Rows(new float[2], 2), new Rows(new long[1])).split(0.2, 0));
        File file = new File(folder.getRoot(), "no.npz");
        assertTrue(assertThrows(DataError.class, () -> Npz.read(file)).getMessage().contains("no.npz"));
    }

    @Test
    public void theMachinesMemoryIsNotTheHeaps() {
        assertTrue(Machine.memoryMb() > 2 * Runtime.getRuntime().maxMemory() / 1_000_000);
    }

    private Agent agent(File state) throws SedgeException {
        AgentConfig config = new AgentConfig("d", "f", "mqtt://127.0.0.1:1", Hex.decode(SECRET), null);
        Examples examples = new Examples(new Rows(new float[4]), new Rows(new long[4]));
        return new Agent(
                config, state, Collections.singletonList(new ClassMeans()), new Trusting(), examples, null);
    }

    @Test
    public void aStateFolderHasOneAgent() throws Exception {
        File state = new File(folder.getRoot(), "state");
        Agent first = agent(state);
        assertEquals(state + ": this process is using this state folder",
                assertThrows(StorageError.class, () -> agent(state)).getMessage());
        File link = new File(folder.getRoot(), "link");
        Files.createSymbolicLink(link.toPath(), state.toPath());
        assertEquals(link + ": this process is using this state folder",
                assertThrows(StorageError.class, () -> agent(link)).getMessage());
        first.stop();
        first.run();
        agent(state).runUntilIdle(0);
    }

    @Test
    public void modelsAndOrdersAreForTheirOwnerOnly() throws Exception {
        File state = new File(folder.getRoot(), "state");
        agent(state).runUntilIdle(0);
        new BlobFolder(state, 1).write(new byte[1]);
        for (File folder : new File[] {state, new File(state, "blobs"), new File(state, "parts")}) {
            assertEquals("rwx------", PosixFilePermissions.toString(Files.getPosixFilePermissions(folder.toPath())));
        }
        for (File file : new File[] {new File(state, "journal"), new File(state, "blobs").listFiles()[0]}) {
            assertEquals("rw-------", PosixFilePermissions.toString(Files.getPosixFilePermissions(file.toPath())));
        }
    }
}
