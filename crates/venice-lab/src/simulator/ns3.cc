// The workloads of `venice bench sim` in ns-3, a program of its own: nothing of Venice is in it.
//
//   ns3 memcached RACKS ARRAYS HOSTS SERVERS REQUESTS THINK-US
//   ns3 incast SERVERS ITERATIONS BLOCK-BYTES BUFFER-BYTES MINIMUM-RTO-NS
//
// Prints one object of JSON. Devices, addresses and routes are made by hand: ns-3's helpers add queue
// disciplines, flow control and routing tables, which cost time and would be unfair to ns-3.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include <sys/resource.h>
#include <time.h>

#include "ns3/core-module.h"
#include "ns3/internet-module.h"
#include "ns3/network-module.h"
#include "ns3/point-to-point-module.h"

using namespace ns3;

namespace {

constexpr uint16_t PORT = 11211;

/// Packets that switches have forwarded.
uint64_t packetHops = 0;
uint64_t requestsDone = 0;

double CpuSeconds() {
    rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    auto seconds = [](const timeval& time) { return time.tv_sec + time.tv_usec / 1e6; };
    return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

double WallSeconds() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec / 1e9;
}

/// Peak of the resident memory. `ru_maxrss` would have that of the parent before exec.
uint64_t ResidentBytes() {
    std::ifstream status("/proc/self/status");
    for (std::string line; std::getline(status, line);) {
        if (line.rfind("VmHWM:", 0) == 0) {
            return std::strtoull(line.c_str() + 6, nullptr, 10) * 1024;
        }
    }
    return 0;
}

Ipv4Address AddressOf(uint32_t host) { return Ipv4Address(0x0a000001u + host); }
uint32_t HostOf(Ipv4Address address) { return address.Get() - 0x0a000001u; }

/// A tree of racks and arrays: switches are numbered racks first, then arrays, then the one above.
struct Tree {
    uint32_t hostsPerRack, racksPerArray, arrays;

    uint32_t Racks() const { return racksPerArray * arrays; }
    uint32_t Hosts() const { return hostsPerRack * Racks(); }

    /// The interface of a switch towards a host. Interface 0 is the loopback; those downwards come first.
    uint32_t Output(uint32_t number, uint32_t host) const {
        uint32_t rack = host / hostsPerRack, array = rack / racksPerArray;
        if (number < Racks()) {
            return 1 + (rack == number ? host % hostsPerRack : hostsPerRack);
        }
        if (number < Racks() + arrays) {
            return 1 + (array == number - Racks() ? rack % racksPerArray : racksPerArray);
        }
        return 1 + array;
    }
};

Tree tree;

/// Routes by arithmetic, with one route for each interface: cheaper than ns-3's tables.
class TreeRouting : public Ipv4RoutingProtocol {
  public:
    /// The number of the switch; -1: a host, whose only interface is 1.
    int64_t number = -1;
    Ipv4Address own;

    Ptr<Ipv4Route> RouteOutput(Ptr<Packet>, const Ipv4Header&, Ptr<NetDevice>, Socket::SocketErrno& error) override {
        error = Socket::ERROR_NOTERROR;
        return Route(1);
    }

    bool RouteInput(Ptr<const Packet> packet, const Ipv4Header& header, Ptr<const NetDevice>, UnicastForwardCallback forward,
                    MulticastForwardCallback, LocalDeliverCallback deliver, ErrorCallback) override {
        if (number < 0) {
            deliver(packet, header, 1);
            return true;
        }
        packetHops++;
        forward(Route(tree.Output(number, HostOf(header.GetDestination()))), packet, header);
        return true;
    }

    void NotifyInterfaceUp(uint32_t) override {}
    void NotifyInterfaceDown(uint32_t) override {}
    void NotifyAddAddress(uint32_t, Ipv4InterfaceAddress) override {}
    void NotifyRemoveAddress(uint32_t, Ipv4InterfaceAddress) override {}
    void SetIpv4(Ptr<Ipv4> ipv4) override { m_ipv4 = ipv4; }
    void PrintRoutingTable(Ptr<OutputStreamWrapper>, Time::Unit) const override {}

  private:
    Ptr<Ipv4Route> Route(uint32_t interface) {
        if (m_routes.size() <= interface) {
            m_routes.resize(interface + 1);
        }
        Ptr<Ipv4Route>& route = m_routes[interface];
        if (!route) {
            route = Create<Ipv4Route>();
            route->SetSource(own);
            // ns-3 refuses a route without a gateway; a device from point to point does not read it.
            route->SetGateway(Ipv4Address("10.255.255.253"));
            route->SetOutputDevice(m_ipv4->GetNetDevice(interface));
        }
        return route;
    }

    Ptr<Ipv4> m_ipv4;
    std::vector<Ptr<Ipv4Route>> m_routes;
};

Ptr<Node> MakeNode(int64_t number, Ipv4Address own) {
    Ptr<Node> node = CreateObject<Node>();
    InternetStackHelper stack;
    stack.SetIpv6StackInstall(false);
    stack.Install(node);
    Ptr<TreeRouting> routing = CreateObject<TreeRouting>();
    routing->number = number;
    routing->own = own;
    node->GetObject<Ipv4>()->SetRoutingProtocol(routing);
    return node;
}

void AddDevice(Ptr<Node> node, Ptr<PointToPointChannel> channel, Ipv4Address address, uint32_t queueBytes) {
    Ptr<PointToPointNetDevice> device = CreateObject<PointToPointNetDevice>();
    device->SetDataRate(DataRate("1Gbps"));
    device->SetMtu(1500);
    device->SetAddress(Mac48Address::Allocate());
    Ptr<DropTailQueue<Packet>> queue = CreateObject<DropTailQueue<Packet>>();
    queue->SetMaxSize(QueueSize(QueueSizeUnit::BYTES, queueBytes));
    device->SetQueue(queue);
    node->AddDevice(device);
    device->Attach(channel);
    Ptr<Ipv4> ipv4 = node->GetObject<Ipv4>();
    uint32_t interface = ipv4->AddInterface(device);
    ipv4->AddAddress(interface, Ipv4InterfaceAddress(address, Ipv4Mask(0xff000000u)));
    ipv4->SetUp(interface);
}

/// 50 ns of cable, and half of the switch's microsecond each way.
void Link(Ptr<Node> upper, Ptr<Node> lower, Ipv4Address lowerAddress, Time delay, uint32_t queueBytes) {
    constexpr uint32_t HOST_QUEUE = 16 << 20;
    bool isHost = lowerAddress != Ipv4Address::GetAny();
    Ptr<PointToPointChannel> channel = CreateObject<PointToPointChannel>();
    channel->SetAttribute("Delay", TimeValue(delay));
    // Addresses of switches are never used; they only have to differ from a host's.
    Ipv4Address unused("10.255.255.254");
    AddDevice(upper, channel, unused, queueBytes);
    AddDevice(lower, channel, isHost ? lowerAddress : unused, isHost ? HOST_QUEUE : queueBytes);
}

std::vector<Ptr<Node>> MakeTree(uint32_t queueBytes) {
    Time level = NanoSeconds(550), between = NanoSeconds(1050);
    std::vector<Ptr<Node>> hosts, racks, arrays;
    for (uint32_t host = 0; host < tree.Hosts(); host++) {
        hosts.push_back(MakeNode(-1, AddressOf(host)));
    }
    for (uint32_t rack = 0; rack < tree.Racks(); rack++) {
        racks.push_back(MakeNode(rack, Ipv4Address::GetAny()));
        for (uint32_t at = 0; at < tree.hostsPerRack; at++) {
            uint32_t host = rack * tree.hostsPerRack + at;
            Link(racks[rack], hosts[host], AddressOf(host), level, queueBytes);
        }
    }
    for (uint32_t array = 0; array < tree.arrays && tree.Racks() > 1; array++) {
        arrays.push_back(MakeNode(tree.Racks() + array, Ipv4Address::GetAny()));
        for (uint32_t at = 0; at < tree.racksPerArray; at++) {
            Link(arrays[array], racks[array * tree.racksPerArray + at], Ipv4Address::GetAny(), between, queueBytes);
        }
    }
    if (tree.arrays > 1) {
        Ptr<Node> top = MakeNode(tree.Racks() + tree.arrays, Ipv4Address::GetAny());
        for (Ptr<Node> array : arrays) {
            Link(top, array, Ipv4Address::GetAny(), between, queueBytes);
        }
    }
    return hosts;
}

/// Runs it, and prints what it took.
void Measure(double began, uint32_t nodes, double wantedRequests, double bytesPerRequest) {
    double built = WallSeconds(), cpu = CpuSeconds();
    uint64_t before = Simulator::GetEventCount();
    Simulator::Run();
    double wall = WallSeconds() - built;
    cpu = CpuSeconds() - cpu;
    double virtualSeconds = Simulator::Now().GetSeconds();
    std::printf("{\"nodes\": %u, \"events\": %llu, \"packet_hops\": %llu, \"requests\": %llu, \"failed\": %.0f, "
                "\"setup_s\": %.6f, \"wall_s\": %.6f, \"cpu_s\": %.6f, \"virtual_s\": %.9f, \"resident_bytes\": %llu, "
                "\"goodput_mbps\": %.3f}\n",
                nodes, (unsigned long long)(Simulator::GetEventCount() - before), (unsigned long long)packetHops,
                (unsigned long long)requestsDone, wantedRequests - requestsDone, built - began, wall, cpu, virtualSeconds,
                (unsigned long long)ResidentBytes(), requestsDone * bytesPerRequest * 8e-6 / virtualSeconds);
}

// memcached

std::mt19937_64 randomNumbers(1);

/// A share above 0, up to 1.
double Draw() { return ((randomNumbers() >> 11) + 1) / double(1ull << 53); }

/// Facebook's pool ETC (Atikoglu et al., SIGMETRICS 2012), as Venice draws it.
uint32_t EtcKey() {
    double power = std::pow(-std::log(Draw()), -0.078688);
    return std::clamp(30.7984 + 8.20449 * (power - 1) / 0.078688, 1.0, 250.0);
}

uint32_t EtcValue() {
    static const int32_t SHARES[15] = {536, 47, 17820, 9239, 18, 2740, 65, 606, 23, 837, 837, 8989, 92, 326, 1980};
    int32_t place = randomNumbers() % 100000;
    for (uint32_t bytes = 0; bytes < 15; bytes++) {
        place -= SHARES[bytes];
        if (place < 0) {
            return bytes;
        }
    }
    return std::min(15.0 + 214.476 * (std::pow(Draw(), -0.348238) - 1) / 0.348238, 1300.0);
}

struct Memcached {
    uint32_t servers, requests;
    double thinkUs;
    /// The answer that each host waits for: the request's packet carries its length alone.
    std::vector<uint32_t> answer;
    std::vector<uint32_t> left;
    std::vector<Ptr<Socket>> sockets;
    /// The end of a server's last service.
    std::vector<Time> busyUntil;
    std::vector<Ptr<Node>> hosts;

    bool IsServer(uint32_t host) const { return host % tree.hostsPerRack < servers; }

    void Ask(uint32_t client) {
        uint32_t number = randomNumbers() % (servers * tree.Racks());
        uint32_t server = number / servers * tree.hostsPerRack + number % servers;
        bool isRead = Draw() < 0.967742, isHit = Draw() < 0.814;
        uint32_t key = EtcKey(), value = EtcValue();
        answer[client] = 8 + (!isRead ? 8 : isHit ? 24 + key + value : 5);
        uint32_t bytes = 8 + (isRead ? 6 + key : 20 + key + value);
        sockets[client]->SendTo(Create<Packet>(bytes), 0, InetSocketAddress(AddressOf(server), PORT));
    }

    void Answer(uint32_t server, uint32_t client) {
        sockets[server]->SendTo(Create<Packet>(answer[client]), 0, InetSocketAddress(AddressOf(client), PORT));
    }

    void Receive(uint32_t host, Ptr<Socket> socket) {
        Address from;
        while (socket->RecvFrom(from)) {
            if (IsServer(host)) {
                uint32_t client = HostOf(InetSocketAddress::ConvertFrom(from).GetIpv4());
                busyUntil[host] = std::max(busyUntil[host], Simulator::Now()) + MicroSeconds(10);
                Simulator::Schedule(busyUntil[host] - Simulator::Now(), &Memcached::Answer, this, host, client);
                continue;
            }
            requestsDone++;
            if (--left[host] > 0) {
                Time think = PicoSeconds(int64_t(-std::log(Draw()) * thinkUs * 1e6));
                Simulator::Schedule(think, &Memcached::Ask, this, host);
            }
        }
    }

    void Run(double began) {
        // As much as the 64 KiB of each pair of 16 inputs and an output in Venice's switches.
        hosts = MakeTree(1 << 20);
        uint32_t count = tree.Hosts();
        answer.resize(count);
        left.assign(count, requests);
        busyUntil.resize(count);
        for (uint32_t host = 0; host < count; host++) {
            Ptr<Socket> socket = Socket::CreateSocket(hosts[host], UdpSocketFactory::GetTypeId());
            socket->Bind(InetSocketAddress(AddressOf(host), PORT));
            socket->SetRecvCallback(Callback<void, Ptr<Socket>>([this, host](Ptr<Socket> from) { Receive(host, from); }));
            sockets.push_back(socket);
            if (!IsServer(host)) {
                Simulator::Schedule(NanoSeconds(randomNumbers() % 2000000), &Memcached::Ask, this, host);
            }
        }
        double clients = count - double(servers) * tree.Racks();
        Measure(began, count, clients * requests, 0);
    }
};

// Incast

constexpr uint32_t REQUEST_BYTES = 64;

struct Incast {
    uint32_t servers, iterations, block;
    std::vector<Ptr<Node>> hosts;
    std::vector<Ptr<Socket>> connections;
    std::vector<uint32_t> asked;
    uint64_t received = 0;
    uint32_t iteration = 0, connected = 0;

    void AskAll() {
        received = 0;
        for (Ptr<Socket> connection : connections) {
            connection->Send(Create<Packet>(REQUEST_BYTES));
        }
    }

    void ReceiveAtServer(uint32_t server, Ptr<Socket> socket) {
        while (Ptr<Packet> packet = socket->Recv()) {
            asked[server] += packet->GetSize();
        }
        for (; asked[server] >= REQUEST_BYTES; asked[server] -= REQUEST_BYTES) {
            socket->Send(Create<Packet>(block));
        }
    }

    void ReceiveAtClient(Ptr<Socket> socket) {
        while (Ptr<Packet> packet = socket->Recv()) {
            received += packet->GetSize();
        }
        if (received < uint64_t(block) * servers) {
            return;
        }
        requestsDone += servers;
        if (++iteration == iterations) {
            Simulator::Stop();
        } else {
            AskAll();
        }
    }

    void Run(double began, uint32_t bufferBytes) {
        hosts = MakeTree(bufferBytes);
        asked.assign(servers + 1, 0);
        for (uint32_t server = 1; server <= servers; server++) {
            Ptr<Socket> listener = Socket::CreateSocket(hosts[server], TcpSocketFactory::GetTypeId());
            listener->Bind(InetSocketAddress(AddressOf(server), PORT));
            listener->Listen();
            listener->SetAcceptCallback(
                Callback<bool, Ptr<Socket>, const Address&>([](Ptr<Socket>, const Address&) { return true; }),
                Callback<void, Ptr<Socket>, const Address&>([this, server](Ptr<Socket> socket, const Address&) {
                    socket->SetRecvCallback(Callback<void, Ptr<Socket>>(
                        [this, server](Ptr<Socket> from) { ReceiveAtServer(server, from); }));
                }));
            Ptr<Socket> connection = Socket::CreateSocket(hosts[0], TcpSocketFactory::GetTypeId());
            connection->Bind();
            connection->SetRecvCallback(Callback<void, Ptr<Socket>>([this](Ptr<Socket> from) { ReceiveAtClient(from); }));
            connection->SetConnectCallback(Callback<void, Ptr<Socket>>([this](Ptr<Socket>) {
                                               if (++connected == servers) {
                                                   AskAll();
                                               }
                                           }),
                                           Callback<void, Ptr<Socket>>([](Ptr<Socket>) { std::exit(1); }));
            Simulator::Schedule(MicroSeconds(server), [connection, server] {
                connection->Connect(InetSocketAddress(AddressOf(server), PORT));
            });
            connections.push_back(connection);
        }
        // A run that livelocks ends all the same, and says what it did not do.
        Simulator::Stop(Seconds(600));
        Measure(began, tree.Hosts(), double(servers) * iterations, block);
    }
};

void SetTcp(uint64_t minimumRtoNs) {
    Config::SetDefault("ns3::TcpL4Protocol::SocketType", TypeIdValue(TcpNewReno::GetTypeId()));
    Config::SetDefault("ns3::TcpSocketBase::Sack", BooleanValue(true));
    Config::SetDefault("ns3::TcpSocketBase::MinRto", TimeValue(NanoSeconds(minimumRtoNs)));
    Config::SetDefault("ns3::TcpSocketBase::ClockGranularity", TimeValue(MilliSeconds(1)));
    Config::SetDefault("ns3::TcpSocket::SegmentSize", UintegerValue(1448));
    Config::SetDefault("ns3::TcpSocket::InitialCwnd", UintegerValue(10));
    Config::SetDefault("ns3::TcpSocket::SndBufSize", UintegerValue(1 << 20));
    Config::SetDefault("ns3::TcpSocket::RcvBufSize", UintegerValue(1 << 20));
    // A window of one segment would wait for the time-out of a delayed acknowledgment, unlike Linux's.
    Config::SetDefault("ns3::TcpSocket::DelAckCount", UintegerValue(1));
    // A flow that has lost too often in a row would end.
    Config::SetDefault("ns3::TcpSocket::DataRetries", UintegerValue(1000));
}

}  // namespace

int main(int count, char** words) {
    double began = WallSeconds();
    // Without a seed some of ns-3's random numbers depend on the clock.
    RngSeedManager::SetSeed(1);
    RngSeedManager::SetRun(1);
    auto number = [words](int at) { return std::strtoull(words[at], nullptr, 10); };
    if (count == 8 && std::strcmp(words[1], "memcached") == 0) {
        tree = Tree{uint32_t(number(4)), uint32_t(number(2)), uint32_t(number(3))};
        Memcached memcached{};
        memcached.servers = number(5);
        memcached.requests = number(6);
        memcached.thinkUs = std::strtod(words[7], nullptr);
        memcached.Run(began);
        return 0;
    }
    if (count == 7 && std::strcmp(words[1], "incast") == 0) {
        tree = Tree{uint32_t(number(2)) + 1, 1, 1};
        SetTcp(number(6));
        Incast incast{};
        incast.servers = number(2);
        incast.iterations = number(3);
        incast.block = number(4);
        incast.Run(began, number(5));
        return 0;
    }
    std::fprintf(stderr, "usage: memcached or incast, with their numbers\n");
    return 2;
}
