package interop;

import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpHandler;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.net.URLDecoder;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.Executors;
import org.apache.bookkeeper.http.AbstractHttpHandlerFactory;
import org.apache.bookkeeper.http.HttpRouter;
import org.apache.bookkeeper.http.HttpServer;
import org.apache.bookkeeper.http.HttpServerConfiguration;
import org.apache.bookkeeper.http.HttpServiceProvider;
import org.apache.bookkeeper.http.service.HttpEndpointService;
import org.apache.bookkeeper.http.service.HttpServiceRequest;
import org.apache.bookkeeper.http.service.HttpServiceResponse;

/** Serves Apache's own HTTP services with the JDK's server, as its Vert.x server does, which needs many more jars. */
public final class PlainHttp implements HttpServer {
    private HttpServiceProvider provider;
    private com.sun.net.httpserver.HttpServer server;

    @Override
    public void initialize(HttpServiceProvider httpServiceProvider) {
        provider = httpServiceProvider;
    }

    @Override
    public boolean startServer(int port) {
        return startServer(port, "127.0.0.1");
    }

    @Override
    public boolean startServer(int port, String host) {
        try {
            server = com.sun.net.httpserver.HttpServer.create(new InetSocketAddress(host, port), 0);
        } catch (IOException e) {
            return false;
        }
        new HttpRouter<HttpHandler>(new Services()) {
            @Override
            public void bindHandler(String endpoint, HttpHandler handler) {
                server.createContext(endpoint, handler);
            }
        }.bindAll();
        server.setExecutor(Executors.newCachedThreadPool());
        server.start();
        return true;
    }

    @Override
    public boolean startServer(int port, String host, HttpServerConfiguration configuration) {
        return startServer(port, host);
    }

    @Override
    public void stopServer() {
        if (server != null) {
            server.stop(0);
        }
    }

    @Override
    public boolean isRunning() {
        return server != null;
    }

    private final class Services extends AbstractHttpHandlerFactory<HttpHandler> {
        Services() {
            super(provider);
        }

        @Override
        public HttpHandler newHandler(HttpServer.ApiType type) {
            HttpEndpointService service = getHttpServiceProvider().provideHttpEndpointService(type);
            return exchange -> answer(service, exchange);
        }
    }

    private static void answer(HttpEndpointService service, HttpExchange exchange) throws IOException {
        byte[] body;
        int status;
        try {
            byte[] sent = exchange.getRequestBody().readAllBytes();
            HttpServiceRequest request = new HttpServiceRequest()
                .setMethod(method(exchange.getRequestMethod()))
                .setParams(parameters(exchange.getRequestURI().getRawQuery()))
                .setBody(sent.length == 0 ? null : new String(sent, StandardCharsets.UTF_8));
            HttpServiceResponse response = service.handle(request);
            status = response.getStatusCode();
            body = response.getBody() == null ? new byte[0] : response.getBody().getBytes(StandardCharsets.UTF_8);
            if (response.getContentType() != null) {
                exchange.getResponseHeaders().set("Content-Type", response.getContentType());
            }
        } catch (Exception e) {
            status = 500;
            body = "Internal Server Error".getBytes(StandardCharsets.UTF_8);
        }
        exchange.sendResponseHeaders(status, body.length == 0 ? -1 : body.length);
        exchange.getResponseBody().write(body);
        exchange.close();
    }

    private static HttpServer.Method method(String name) {
        switch (name) {
            case "POST":
                return HttpServer.Method.POST;
            case "DELETE":
                return HttpServer.Method.DELETE;
            case "PUT":
                return HttpServer.Method.PUT;
            default:
                return HttpServer.Method.GET;
        }
    }

    private static Map<String, String> parameters(String query) {
        Map<String, String> found = new HashMap<>();
        if (query != null) {
            for (String part : query.split("&")) {
                int equals = part.indexOf('=');
                String name = equals < 0 ? part : part.substring(0, equals);
                String value = equals < 0 ? "" : part.substring(equals + 1);
                found.put(URLDecoder.decode(name, StandardCharsets.UTF_8),
                    URLDecoder.decode(value, StandardCharsets.UTF_8));
            }
        }
        return found;
    }
}
