package org.sedge.edge;

import org.sedge.edge.SedgeException.FrameError;
import org.sedge.edge.SedgeException.StorageError;
import org.sedge.edge.host.Disk;
import org.sedge.edge.host.Journal;
import org.sedge.edge.host.Link;
import org.sedge.edge.host.LockFile;
import org.sedge.edge.rounds.StateStore;
import org.sedge.edge.wire.DeviceKeys;
import org.sedge.edge.wire.Frame;
import org.sedge.edge.wire.Kind;
import org.sedge.edge.wire.Messages.Goodbye;
import org.sedge.edge.wire.Messages.Hello;
import org.sedge.edge.wire.Messages.Refusal;
import org.sedge.edge.wire.Peer;
import org.sedge.edge.wire.Topics;

import java.io.File;
import java.security.SecureRandom;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;

/**
 * Leaves a fleet permanently (WIRE.md, 5.4). Repeats its leaving hello until the coordinator answers that the device is
 * revoked, then deletes the device's state.
 */
final class Leaving implements Link.Owner {
    private static final double AGAIN_S = 2;
    private static final long LOOK_MILLIS = 100;

    private final DeviceKeys keys;
    private final Peer peer;
    private final byte[] nonce = new byte[16];
    private final BlockingQueue<Runnable> tasks = new LinkedBlockingQueue<>(16);
    private final Link link;
    private final String downTopic;
    private double helloAt = Double.NaN;
    private boolean refused;

    private Leaving(AgentConfig config, long starts, DeviceKeys keys) {
        this.keys = keys;
        SecureRandom random = new SecureRandom();
        random.nextBytes(nonce);
        downTopic = Topics.down(config.fleet, config.device);
        long start = Frame.nextIncarnation(starts, System.currentTimeMillis() / 1000);
        peer = new Peer(Topics.up(config.fleet, config.device), keys, start, 0);
        link = new Link(config, keys.password, peer.topic, downTopic, this, random, tasks);
    }

    /** Leaves the fleet and deletes the folder's contents in any case. Returns true if the coordinator was notified. */
    static boolean leave(AgentConfig config, File stateFolder, long maxMillis) throws SedgeException {
        double deadline = Link.now() + maxMillis / 1000.0;
        Disk.makeFolder(stateFolder);
        File file = new File(stateFolder, "lock");
        LockFile lock = LockFile.tryTake(file);
        while (lock == null) { // an agent may be stopping just now
            if (Link.now() > deadline || !paused()) {
                throw new StorageError(stateFolder + ": an agent is using this state folder", null);
            }
            lock = LockFile.tryTake(file);
        }
        try {
            AgentConfig newest = newest(config, stateFolder);
            boolean heard = new Leaving(newest, starts(stateFolder), keys(config, stateFolder)).told(deadline);
            Disk.removeAllBut(stateFolder, file);
            return heard;
        } finally {
            lock.close();
        }
    }

    private static boolean paused() {
        try {
            Thread.sleep(LOOK_MILLIS);
            return true;
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
            return false;
        }
    }

    /** Returns the device's start count, or 0 if its state cannot be read: the state is about to be deleted anyway. */
    private static long starts(File stateFolder) {
        try {
            return StateStore.starts(new Journal(new File(stateFolder, "journal")));
        } catch (StorageError error) {
            return 0;
        }
    }

    /** Returns the device's current keys or, if they cannot be read, the keys from its enrolment. */
    private static DeviceKeys keys(AgentConfig config, File stateFolder) {
        try {
            return Agent.keyring(config, stateFolder).keys();
        } catch (StorageError error) {
            return new DeviceKeys(config.secret());
        }
    }

    /**
     * Returns the configuration with the newest certificate or, if that cannot be read, with the one from enrolment.
     */
    private static AgentConfig newest(AgentConfig config, File stateFolder) {
        try {
            return new KeptCertificate(config, stateFolder).newest();
        } catch (SedgeException error) {
            return config;
        }
    }

    private boolean told(double deadline) {
        try {
            while (!refused && Link.now() < deadline) {
                link.keep();
                if (Link.now() >= helloAt) {
                    helloAt = Link.now() + AGAIN_S;
                    link.send(peer.topic, hello());
                }
                Runnable task = tasks.poll(LOOK_MILLIS, TimeUnit.MILLISECONDS);
                if (task != null) {
                    task.run();
                }
            }
        } catch (InterruptedException error) { // the thread's owner is asking it to stop
            Thread.currentThread().interrupt();
        } finally {
            link.close();
        }
        return refused;
    }

    private byte[] hello() {
        return peer.seal(Kind.HELLO, Hello.SCHEMA.empty().with(Hello.NONCE, nonce)
                .with(Hello.VERSION, "java " + Agent.VERSION).with(Hello.VERSIONS, peer.versions)
                .with(Hello.LEAVES, true), null);
    }

    @Override
    public byte[] will() {
        return peer.seal(Kind.GOODBYE, Goodbye.SCHEMA.empty().with(Goodbye.NONCE, nonce), null);
    }

    @Override
    public void connected() {
        helloAt = Link.now();
    }

    @Override
    public void received(String topic, byte[] payload) {
        try {
            Frame frame = Frame.open(payload, topic, keys.down, peer.versions);
            if (frame.kind == Kind.REFUSED && topic.equals(downTopic)) {
                refused |= ((Refusal) frame.message()).reason.equals("revoked");
            }
        } catch (FrameError error) {
            // Ignore frames that do not come from the coordinator.
        }
    }

    @Override
    public void disconnected(String reason) {
        helloAt = Double.NaN;
    }

    @Override
    public long fleetDevices() {
        return 0;
    }
}
