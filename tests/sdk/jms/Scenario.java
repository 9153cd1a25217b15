// A short program that fails by throwing.

interface Scenario {
    void run(World world) throws Exception;
}
