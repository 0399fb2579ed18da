package interop;

import java.util.Arrays;

/** Runs another program's main and ends with its own standard input, so that no server outlives the tests. */
public final class Guarded {
    private Guarded() {
    }

    public static void main(String[] args) throws Exception {
        Thread guard = new Thread(() -> {
            try {
                while (System.in.read() >= 0) {
                    continue;
                }
            } catch (java.io.IOException gone) {
                // as good as the end of the input
            }
            Runtime.getRuntime().halt(0);
        });
        guard.setDaemon(true);
        guard.start();
        String[] rest = Arrays.copyOfRange(args, 1, args.length);
        Class.forName(args[0]).getMethod("main", String[].class).invoke(null, (Object) rest);
    }
}
