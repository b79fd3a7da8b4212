package org.sedge.edge.host;

import org.sedge.edge.AgentConfig;
import org.sedge.edge.SedgeException;

import java.util.Random;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;

/** Connects to a broker. If that fails, prints why. */
public final class SayWhy implements Link.Owner {
    private String said;

    SayWhy() {}

    public static String why(String url) throws SedgeException, InterruptedException {
        SayWhy owner = new SayWhy();
        BlockingQueue<Runnable> tasks = new LinkedBlockingQueue<>(16);
        AgentConfig config = new AgentConfig("pi-1", "test", url, new byte[32], null);
        Link link = new Link(config, "password", "up", "down", owner, new Random(1), tasks);
        link.keep();
        while (owner.said == null) {
            tasks.take().run();
        }
        link.close();
        return owner.said;
    }

    @Override
    public byte[] will() {
        return new byte[1];
    }

    @Override
    public void connected() { }

    @Override
    public void received(String topic, byte[] payload) { }

    @Override
    public void disconnected(String reason) {
        said = reason;
    }

    @Override
    public long fleetDevices() {
        return 0;
    }
}
