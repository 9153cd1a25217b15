// Administration clients of a broker on a non-standard port.

import com.azure.core.http.policy.HttpPipelinePolicy;
import com.azure.core.http.policy.PortPolicy;
import com.azure.messaging.servicebus.administration.ServiceBusAdministrationClient;
import com.azure.messaging.servicebus.administration.ServiceBusAdministrationClientBuilder;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

final class Administration {
    private static final Pattern PORT = Pattern.compile("Endpoint=sb://[^:;]+:(\\d+)");

    private Administration() {}

    /** The SDK forgets the port of a connection string, and is told again by a policy. */
    static ServiceBusAdministrationClient client(String connectionString, HttpPipelinePolicy... policies) {
        Matcher found = PORT.matcher(connectionString);
        if (!found.find()) {
            throw new AssertionError("there is no port in " + connectionString);
        }
        ServiceBusAdministrationClientBuilder builder = new ServiceBusAdministrationClientBuilder()
            .connectionString(connectionString)
            .addPolicy(new PortPolicy(Integer.parseInt(found.group(1)), true));
        for (HttpPipelinePolicy policy : policies) {
            builder.addPolicy(policy);
        }
        return builder.buildClient();
    }
}
