#!/bin/busybox sh
# The first process of the guest (see scripts/guest.sh). It makes the files of the machine outside
# the guest's own, lays memory over them for what is written, and then does what it is told over a
# virtio port:
#
#   in:  run SECONDS LENGTH, and LENGTH bytes of a script for bash
#   out: done STATUS LENGTH, and LENGTH bytes of its output
#
# The end of the port is the end of the guest.
PATH=/bin
export PATH
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev

give_up() {
    echo "guest: $1"
    sync
    poweroff -f
}

while read -r module; do
    insmod "/modules/$module" || give_up "cannot load $module"
done </modules/order

mount -t 9p -o trans=virtio,version=9p2000.L,ro,cache=loose,msize=262144 host /lower ||
    give_up "cannot mount the files outside"
mount -t tmpfs -o size=90% writable /writable
mkdir /writable/upper /writable/work
mount -t overlay -o lowerdir=/lower,upperdir=/writable/upper,workdir=/writable/work overlay /root ||
    give_up "cannot lay memory over the files outside"
for folder in proc sys dev; do mount --move "/$folder" "/root/$folder"; done
mkdir -p /root/dev/pts /root/dev/shm
mount -t devpts devpts /root/dev/pts
mount -t tmpfs shm /root/dev/shm
mount -t tmpfs run /root/run
ln -sf /proc/self/fd /root/dev/fd
ln -sf /proc/self/fd/0 /root/dev/stdin
ln -sf /proc/self/fd/1 /root/dev/stdout
ln -sf /proc/self/fd/2 /root/dev/stderr

folder="$(sed -n 's/.*guest\.folder=\([^ ]*\).*/\1/p' /root/proc/cmdline)"
version="$(uname -r)"
rm -rf "/root/lib/modules/$version"
mkdir -p /root/lib/modules
ln -s "$folder/lib/modules/$version" "/root/lib/modules/$version"
for tool in modprobe insmod rmmod lsmod; do
    [ -e "/root/usr/sbin/$tool" ] || ln -sf ../bin/busybox "/root/usr/sbin/$tool"
done
# Where the kernel looks for what it is missing itself.
printf '#!/bin/busybox sh\nexec /bin/busybox chroot /root /usr/sbin/modprobe "$@"\n' >/bin/load
chmod 755 /bin/load
echo /bin/load >/root/proc/sys/kernel/modprobe
hostname guest
ip link set lo up

export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM=dumb
if grep -q guest.shell /root/proc/cmdline; then
    /bin/busybox setsid /bin/busybox cttyhack /bin/busybox chroot /root /bin/bash -l
    give_up "done"
fi

port=/root/dev/vport0p1
for _ in $(/bin/busybox seq 100); do
    for port in /root/dev/vport*p1; do [ -e "$port" ] && break 2; done
    /bin/busybox sleep 0.1
done
[ -e "$port" ] || give_up "no port to take commands from"
exec 3<>"$port"
echo "ready $version" >&3
while read -r word seconds length <&3; do
    [ "$word" = run ] || continue
    /bin/busybox head -c "$length" <&3 >/root/run/command
    /bin/busybox timeout -s KILL "$seconds" /bin/busybox chroot /root /bin/bash /run/command \
        </root/dev/null >/root/run/output 2>&1 3>&-
    status=$?
    echo "done $status $(/bin/busybox stat -c %s /root/run/output)" >&3
    /bin/busybox cat /root/run/output >&3
done
give_up "nobody gives commands any more"
